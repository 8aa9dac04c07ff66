"""The page of a paper."""

PAPER = """{% extends "base" %}
{% import "parts" as parts %}
{% block main %}
<p class="kicker">Reproduction of {{ short }}</p>
<h1>{{ results.title }}</h1>
<p class="soft">{{ results.authors }}</p>
<p class="lead">{{ results.idea }}</p>
{{ parts.counts(verdicts) }}
<p class="soft">Up to {{ many(results.seeds, "seed") }} per cell;
{% if results.scale == "small" %}at a small scale: below each table stands what differs from the paper
{%- else %}at the paper’s own scale{% endif %}. Methods: {{ results.methods|join(", ") }}.</p>
{% if results.command %}<pre class="wrap" tabindex="0">{{ results.command }}</pre>{% endif %}

<h2 id="claims">Claims and what became of them</h2>
<p class="soft">{{ how_decided }}</p>
{% for claim in results.claims %}
<article class="card claim" id="claim:{{ claim.name|slug }}">
<h3>{{ claim.claim }}</h3>
<p class="verdict">{{ parts.badge(badges[claim.verdict]) }} <span class="soft">{{ claim.source }}</span></p>
<p>{{ claim.words }}</p>
{% if claim.difference is not none and claim.difference.mean is not none %}
<p class="interval">{{ around_zero(claim.difference) }}
<span>difference <b>{{ claim.difference|measured(true) }}</b> {{ claim.unit }}
<span class="soft">({{ "95 % interval, " if claim.difference.half_width is not none }}
{{- claim.difference|seeds }})</span>
</span></p>
{% endif %}
</article>
{% else %}
<p>No claim has been checked yet.</p>
{% endfor %}

<h2 id="leak">What leaks</h2>
<div class="box" role="note"><p>{{ results.leak }}</p></div>
<h2 id="repair">How it was repaired</h2>
<div class="box good" role="note"><p>{{ results.repair }}</p></div>

{% if tables %}
<h2 id="tables">Tables</h2>
<p>Measured: mean ± half width of the 95 % interval over seeds. Below it what the paper reports, and its runs by
their seeds.</p>
{% for shown in tables %}
{% set table = shown.table %}
<h3 id="{{ shown.id }}">{{ table.title }}</h3>
<p class="soft">{{ table.source }}{% if table.unit %}; in {{ table.unit }}{% endif %}</p>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="{{ shown.id }}">
<table class="sortable cells">
<thead><tr><th scope="col">method</th>
{% for column in table.columns %}<th scope="col">{{ column }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for row in shown.rows %}
<tr id="{{ row.id }}"><th scope="row">{{ row.label }}</th>
{% for one in row.cells %}
<td data-sort="{{ one.sort }}">
{% if one.cell.measured is not none %}
<b class="figure">{{ one.cell.measured|measured }}</b> <span class="soft">({{ one.cell.measured.n }})</span>
{% else %}
<span class="soft">{{ one.cell.missing or "–" }}</span>
{% endif %}
{% if one.cell.superseded %}
<span class="soft" title="{{ one.cell.superseded }}">† to be made anew</span>
{% endif %}
{% if one.cell.reported is not none %}
<span class="reported">paper {{ one.cell.reported|plain }}</span>
{% endif %}
{{ parts.run_links(one.links, root) }}
</td>
{% endfor %}
{% for _ in range(row.missing) %}<td data-sort=""></td>{% endfor %}
</tr>
{% else %}
<tr><td class="soft" colspan="{{ table.columns|length + 1 }}">nothing measured yet</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% if table.orderings %}
<h4>Does the paper’s order hold?</h4>
<ul class="orderings">
{% for order in table.orderings %}
<li>{{ parts.badge(badges["holds" if order.holds else "does not hold" if order.contradicted else "not decided"]) }}
<b>{{ order.column }}</b>: of {{ many(order.agreeing + order.contradicted + order.open, "pair") }},
{{ order.agreeing }} as reported beyond doubt, {{ order.contradicted }} the other way round, {{ order.open }} open.
<span class="soft">Paper: {{ order.reported|join(" > ") }}. Measured: {{ order.measured|join(" > ") }}.</span></li>
{% endfor %}
</ul>
{% endif %}
{% if table.notes %}
<ul class="soft">{% for note in table.notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
{% endfor %}
{% endif %}

{% if pictures %}
<h2 id="figures">Figures</h2>
{{ parts.pictures(pictures, root) }}
{% endif %}
{{ parts.origin(provenance, runs, runs_path, root) }}
{% endblock %}
{% block script %}{{ parts.script(root) }}{% endblock %}
"""
