"""The page of a run, and the list of a study's runs."""

RUNS = """{% extends "base" %}
{% import "parts" as parts %}
{% block main %}
<p class="kicker"><a href="{{ root }}{{ study_path }}">Back to {{ study_title }}</a></p>
<h1 id="title">{{ title }}</h1>
<p class="soft">{{ many(count, "run") }} in {{ many(settings|length, "setting") }}; a row is of runs that differ in
nothing but the seed, and shows the mean of their accuracies. To repeat a run: the words above its table, those of its
row, and <code>seed=</code> with the number that ends its name. Epsilons are on the runs’ pages: runs may have different
threat models, and such epsilons do not belong into one column. Whole records are lines of
<code>{{ study }}/runs.jsonl</code>, in the folder of results that this site is made of.</p>
<p class="soft">{{ rule }} {{ chosen }}{% if unlisted %} {{ unlisted }}{% endif %}</p>
{% for setting in settings %}
<h2 id="setting:{{ loop.index }}">Setting {{ loop.index }} of {{ settings|length }}</h2>
<pre class="wrap" tabindex="0">{{ setting.command }}</pre>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="setting:{{ loop.index }}">
<table class="sortable list">
<thead><tr><th scope="col">run</th><th scope="col">accuracy, %</th>
{%- if setting.own %}<th scope="col">clients’ own tests, %</th>{% endif %}
<th scope="col">time, s</th><th scope="col">options</th></tr></thead>
<tbody>
{% for row in setting.rows %}
<tr><th scope="row">
{%- for run in row.runs %}
<span id="{{ run.id }}">{% if run.page %}<a href="{{ run.id }}.html">{{ run.name }}</a>
{%- else %}{{ run.name }}{% endif %}
{%- if run.superseded %} <i title="to be made anew: {{ run.superseded }}">†</i>{% endif %}
{%- if run.accuracy %} <i>{{ run.accuracy }}</i>{% endif %}</span>
{%- endfor %}</th><td>{{ row.accuracy }}</td>
{%- if setting.own %}<td>{{ row.own }}</td>{% endif %}
<td>{{ row.seconds }}</td><td>{{ row.options }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% endfor %}
{% endblock %}
{% block script %}{{ parts.script(root) }}{% endblock %}
"""

RUN = """{% extends "base" %}
{% import "parts" as parts %}
{% import "summary" as parts_of_run %}
{% block main %}
<p class="kicker"><a href="{{ root }}{{ study_path }}">Back to {{ study_title }}</a> ·
<a href="{{ root }}{{ line }}">all its runs</a> · {{ kind }}</p>
<h1 class="name">{{ run.name }}</h1>
<p class="soft">{{ subtitle }}</p>
{{ parts_of_run.row(tiles) }}
{% if published %}
<div class="box" role="note"><p><strong>Published variant.</strong> This run follows the paper as printed, not the
repaired default.</p></div>
{% endif %}
{% if run.superseded %}
<div class="box" role="note"><p><strong>To be made anew.</strong> {{ run.superseded }}</p></div>
{% endif %}
{% if note %}
<div class="box" role="note"><p><strong>Note.</strong> {{ note }}</p></div>
{% endif %}
{% if layers %}
<div class="box" role="note"><p><strong>Clients keep layers.</strong> {{ layers }}</p></div>
{% endif %}

<h2 id="repeat">The run</h2>
<pre class="wrap" tabindex="0">{{ run.command }}</pre>
<dl>
<div><dt>Seed</dt><dd>{{ run.seed }}</dd></div>
<div><dt>Made by</dt><dd>{{ made_by }}</dd></div>
{% if run.seconds %}<div><dt>Time</dt><dd>{{ run.seconds|elapsed }}</dd></div>{% endif %}
</dl>
{% if uses %}
<p>Used in:</p>
<ul>{% for use in uses %}<li><a href="{{ root }}{{ use.href }}">{{ use.text }}</a></li>{% endfor %}</ul>
{% else %}
<p class="soft">No table uses this run.</p>
{% endif %}

{% if alike %}
<h2 id="seeds">The same with other seeds</h2>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="seeds">
<table>
<thead><tr><th scope="col">run</th><th scope="col">accuracy</th>
{%- if alike[0].own %}<th scope="col">clients’ own tests</th>{% endif %}
<th scope="col">verified epsilon</th><th scope="col">time</th></tr></thead>
<tbody>
{% for row in alike %}{% if loop.index <= 8 or row.shown %}
<tr><th scope="row">{% if row.shown %}{{ row.name }}{% else -%}
<a href="index.html#{{ row.name|slug }}">{{ row.name }}</a>{% endif %}</th><td>{{ row.accuracy }}</td>
{%- if alike[0].own %}<td>{{ row.own }}</td>{% endif %}
<td>{{ row.verified }}</td><td>{{ row.seconds }}</td></tr>{% endif %}
{%- endfor %}
</tbody>
</table>
</div>
{% if alike|length > 8 %}<p class="soft">Of {{ alike|length }} seeds in all; the others are in
<a href="index.html">the list</a>.</p>{% endif %}
{% endif %}

<h2 id="privacy">Privacy</h2>
{% if privacy %}
{{ parts_of_run.epsilons(privacy, true, "The three epsilons") }}
{% else %}
<p>This run left no record of privacy.</p>
{% endif %}
{% for other in others %}
<h3>Also seen by: {{ other.observer }}</h3>
<p class="soft">Another threat model: these epsilons and the ones above are not comparable.</p>
{{ parts_of_run.epsilons(other, false, "The three epsilons, seen by " ~ other.observer) }}
{% endfor %}
{% if attacks %}
<h3>Membership inference</h3>
<ul>{% for name, verdict in attacks %}<li>{{ name }}: {{ verdict }}</li>{% endfor %}</ul>
{% endif %}

{% if charts or evaluated_once %}
<h2 id="learning">Learning</h2>
{% if evaluated_once %}<p>{{ evaluated_once }}</p>{% endif %}
<div class="pictures">
{% for chart, words in charts %}
<figure>{{ chart }}<figcaption>{{ words }}</figcaption></figure>
{% endfor %}
</div>
{% endif %}
{% if figures %}
<h2 id="figures">Figures</h2>
<div class="card">{{ parts.pairs(figures) }}</div>
{% endif %}
{% if cost %}
<h2 id="cost">Cost</h2>
<div class="card">{{ parts.pairs(cost) }}</div>
{% endif %}
<h2 id="details">Details</h2>
<p>The whole record is line {{ number }} of <code>{{ study }}/runs.jsonl</code>, in the folder of results that this site
is made of.</p>
{% if summary %}
<details><summary>What else its summary holds</summary><pre class="wrap" tabindex="0">{{ summary }}</pre></details>
{% endif %}
{% endblock %}
"""
