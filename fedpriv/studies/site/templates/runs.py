"""The page of a run, and the list of a study's runs."""

RUNS = """{% extends "base" %}
{% import "parts" as parts %}
{% block main %}
<p class="kicker"><a href="{{ root }}{{ study_path }}">Back to {{ study_title }}</a></p>
<h1 id="title">{{ title }}</h1>
<p class="soft">{{ many(rows|length, "run") }}. Epsilons are on the page of each: runs may have different threat
models, and such epsilons do not belong into one column.</p>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="title">
<table class="sortable">
<thead><tr><th scope="col">run</th><th scope="col">kind</th><th scope="col">method</th>
<th scope="col">seed</th><th scope="col">accuracy</th><th scope="col">clients’ own tests</th>
<th scope="col">time</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row"><a href="{{ row.file }}">{{ row.name }}</a></th><td>{{ row.kind }}</td>
<td>{{ row.method }}</td><td>{{ row.seed }}</td>
<td data-sort="{{ "" if row.accuracy is none else row.accuracy }}" class="figure">{{ row.accuracy_words }}</td>
<td data-sort="{{ "" if row.own is none else row.own }}" class="figure">{{ row.own_words }}</td>
<td data-sort="{{ row.seconds or "" }}" class="figure">{{ row.seconds|elapsed if row.seconds else "–" }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% endblock %}
{% block script %}<script>
{% include "sort.js" %}
</script>{% endblock %}
"""

RUN = """{% extends "base" %}
{% import "parts" as parts %}
{% import "summary" as parts_of_run %}
{% block main %}
<p class="kicker"><a href="{{ root }}{{ study_path }}">Back to {{ study_title }}</a> ·
<a href="index.html">all its runs</a> · {{ kind }}</p>
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
{% if run.options %}
<details open><summary>{{ many(run.options|length, "option") }}</summary>
<ul class="options">{% for option in run.options %}<li><code>{{ option }}</code></li>{% endfor %}</ul></details>
{% endif %}
{% if uses %}
<p>Used in:</p>
<ul>{% for use in uses %}<li><a href="{{ root }}{{ use.href }}">{{ use.text }}</a></li>{% endfor %}</ul>
{% else %}
<p class="soft">No table uses this run.</p>
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

{% if charts %}
<h2 id="learning">Learning</h2>
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
<details><summary>The whole summary</summary><pre tabindex="0">{{ summary }}</pre></details>
{% endblock %}
"""
