"""The leaderboard: a section per threat model, never one table across them."""

LEADERBOARD = """{% extends "base" %}
{% import "parts" as parts %}
{% block main %}
<p class="kicker">Leaderboard</p>
<h1>Methods at equal verified privacy</h1>
<p class="lead">Each method’s noise is set so that its verified epsilon meets a target; then accuracy decides. There is
one board per threat model, and entries of two boards are not comparable.</p>
<p class="soft">{{ many(results.seeds, "seed") }} per entry; {{ many(results.trials, "trial") }} of search per method
and target. Accuracy: mean ± half width of the 95 % interval over seeds; =: tied with the first, the 95 % interval of
their paired difference holds 0.</p>
<div class="box" role="note"><p><strong>What epsilon leaves out.</strong> {{ results.note }}</p>
{% if "Papernot" not in results.note %}
<p>The search for good options looked at the same data, and no epsilon here includes it (Papernot and Steinke 2022:
“Hyperparameter Tuning with Renyi Differential Privacy”).</p>
{% endif %}
</div>

<form id="filters" class="card" hidden role="search" aria-label="Filter the leaderboard">
<p><label for="filter-board">Threat model</label>
<select id="filter-board"><option value="">all</option>
{% for one in boards %}<option value="{{ one.slug }}">{{ one.board.title }}</option>{% endfor %}
</select></p>
<p><label for="filter-target">Target epsilon</label>
<select id="filter-target"><option value="">all</option>
{% for target in targets %}<option>{{ target }}</option>{% endfor %}
</select></p>
<p class="grow"><label for="filter-text">Method or paper</label>
<input id="filter-text" type="search" autocomplete="off" placeholder="for example fedcad"></p>
<p><button type="reset">Show all</button></p>
<p id="filter-status" role="status"></p>
</form>

{% for one in boards %}
{% set board = one.board %}
<section class="board" id="{{ one.id }}" data-board="{{ one.slug }}" aria-labelledby="{{ one.id }}:title">
<h2 id="{{ one.id }}:title">{{ board.title }}</h2>
<p>{{ one.question }}</p>
<p class="soft">{{ board.setting }}</p>
{% if board.measure == "personalised" %}
<p>Accuracy is the mean, over clients, of a client’s own model on its own test pictures.</p>
{% endif %}
{% if board.reference.mean is not none %}
<p>Without privacy, in the same setting: <b class="figure">{{ board.reference|measured }} %</b>
<span class="soft">({{ board.reference|seeds }})</span>, the dotted line in the tables.</p>
{% endif %}
{% if board.alone and board.alone.mean is not none %}
<p>Every client by itself, which costs nothing: <b class="figure">{{ board.alone|measured }} %</b>
<span class="soft">({{ board.alone|seeds }})</span>.</p>
{% endif %}
<details><summary>The threat model</summary>
<table class="stack threat"><tbody>
{% for term, word, meaning in one.threat %}
<tr><th scope="row">{{ term }}</th><td>{{ word }}</td><td class="soft">{{ meaning }}</td></tr>
{% endfor %}
</tbody></table></details>
{% if board.verdicts %}
<h3>Does a paper’s idea beat the plain methods?</h3>
<ul class="verdicts">{% for verdict in board.verdicts %}<li>{{ verdict }}</li>{% endfor %}</ul>
{% endif %}
{% for target, entries in one.groups %}
<div class="group" data-target="{{ target }}">
<h3 id="{{ one.id }}:{{ target|slug }}">Epsilon {{ target }}</h3>
{% if entries %}
<div class="card scroll" tabindex="0" role="region" aria-labelledby="{{ one.id }}:title {{ one.id }}:{{ target|slug }}">
<table class="sortable entries">
<thead><tr><th scope="col">rank</th><th scope="col">method</th><th scope="col">accuracy, %</th>
<th scope="col">verified</th><th scope="col">sent by clients</th><th scope="col">sent by server</th>
<th scope="col">time</th><th scope="col" data-fixed>chosen</th></tr></thead>
<tbody>
{% for row in entries %}
{% set entry = row.entry %}
<tr id="{{ row.id }}" class="entry" data-search="{{ row.search }}">
<td data-sort="{{ entry.rank }}" class="rank">{{ entry.rank }}
{%- if entry.tied and entry.rank > 1 %}<span title="tied with the first">=</span>{% endif %}</td>
<th scope="row" data-sort="{{ entry.label }}">{{ entry.label }}
{% if row.paper_path %}
<a class="under" href="{{ root }}{{ row.paper_path }}">{{ row.paper }}</a>
{% elif row.paper %}
<span class="under">{{ row.paper }}</span>
{% endif %}
</th>
<td data-sort="{{ entry.accuracy|sortable }}"><b class="figure">{{ entry.accuracy|measured }}</b>
<span class="soft">({{ entry.accuracy.n }})</span>{{ row.strip }}
{{ parts.run_links(row.links, root) }}</td>
<td data-sort="{{ entry.verified_epsilon }}" class="figure">{{ entry.verified_epsilon|figure }}
{%- if entry.superseded %}<span title="to be made anew: {{ entry.superseded }}">†</span>{% endif %}</td>
<td data-sort="{{ entry.bytes_up }}" class="figure">{{ entry.bytes_up|size }}</td>
<td data-sort="{{ entry.bytes_down }}" class="figure">{{ entry.bytes_down|size }}</td>
<td data-sort="{{ entry.seconds|sortable }}" class="figure">{{ entry.seconds|duration }}</td>
<td class="chosen">
{% for name, value in entry.chosen.items() %}
<code>{{ name }}={{ value }}</code>
{% else %}
<span class="soft">defaults</span>
{% endfor %}
{% if board.trials and entry.tried is not none and entry.tried < board.trials %}
<span class="soft">of {{ entry.tried }} of {{ board.trials }} trials: the others failed</span>
{% endif %}
{% if entry.superseded %}
<span class="soft">†: to be made anew: {{ entry.superseded }}</span>
{% endif %}
<details><summary>command</summary><pre tabindex="0">{{ entry.command }}</pre></details></td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% else %}
<p class="soft">No method reaches this target.</p>
{% endif %}
</div>
{% endfor %}
{% if one.left %}
<div class="left">
<h3 id="{{ one.id }}:left">Not ranked, and prices without calibration</h3>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="{{ one.id }}:title {{ one.id }}:left">
<table class="sortable">
<thead><tr><th scope="col">method</th><th scope="col">variant</th><th scope="col">target</th>
<th scope="col">reason</th></tr></thead>
<tbody>
{% for row in one.left %}
<tr class="leftout" data-search="{{ row.search }}" data-target="{{ row.target }}">
<th scope="row">{{ row.left.label }}</th>
<td>{{ row.left.variant }}</td><td>{{ row.target or "all" }}</td><td class="words">{{ row.left.reason }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
</div>
{% endif %}
{% if board.search %}
<details><summary>What was tried for each method</summary>
<ul class="options">{% for name, words in board.search.items() %}<li>{{ name }}: <code>{{ words }}</code></li>
{% endfor %}</ul></details>
{% endif %}
{% if one.pictures %}{{ parts.pictures(one.pictures, root) }}{% endif %}
</section>
{% else %}
<p>There is no board yet.</p>
{% endfor %}
<p id="nothing" hidden>No entry fits these filters.</p>

<h2 id="search">How the options were searched</h2>
<pre class="wrap">{{ results.search }}</pre>
{{ parts.origin(provenance, runs, runs_path, root) }}
{% endblock %}
{% block script %}{{ parts.script(root) }}{% endblock %}
"""
