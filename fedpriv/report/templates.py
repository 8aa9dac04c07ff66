"""The HTML of the pages (jinja2). A Python module, because Flower's app bundle excludes template files."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f6f4; --card: #fff; --ink: #1d1f23; --soft: #5c6169; --line: #dfdfdb;
  --accent: #0072B2; --claimed: #D55E00; --verified: #007a59; --audited: #0072B2;
  --warn: #fff1e3; --warn-line: #D55E00; }
@media (prefers-color-scheme: dark) { :root { --page: #131417; --card: #1c1e22; --ink: #e7e7e4; --soft: #a2a7af;
  --line: #34373d; --accent: #6cbcf0; --claimed: #ff9d5c; --verified: #4fd0a5;
  --audited: #6cbcf0; --warn: #33231a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: clamp(1.5rem, 5vw, 2.2rem); line-height: 1.2; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem; }
p, ul { margin: .4rem 0; max-width: 46rem; }
ul { padding-left: 1.2rem; }
a { color: var(--accent); }
.soft, figcaption, .scope { color: var(--soft); }
.kicker { color: var(--soft); font-size: .9rem; margin: 0 0 .2rem; }
.tiles { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); margin: 1.4rem 0; }
.tile, .card, figure, details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: .7rem .9rem; border-top: 4px solid var(--line); }
.tile b { display: block; font-size: 1.55rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { font-size: .84rem; color: var(--soft); }
.tile b.word { font-size: 1.1rem; line-height: 1.94rem; }
.claimed { border-top-color: var(--claimed); } .verified { border-top-color: var(--verified); }
.audited { border-top-color: var(--audited); }
.box { background: var(--warn); border-left: 5px solid var(--warn-line); border-radius: 4px; padding: .7rem 1rem;
  margin: 1rem 0; }
.box p { margin: 0; max-width: none; }
.card { padding: .2rem 1rem; overflow-x: auto; margin: .8rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .55rem .9rem .55rem 0; border-top: 1px solid var(--line); }
thead th { border-top: 0; font-size: .84rem; color: var(--soft); font-weight: 500; }
tbody:first-child tr:first-child > * { border-top: 0; }
tbody th { font-weight: 600; white-space: nowrap; }
td.epsilon { font-size: 1.1rem; font-weight: 600; white-space: nowrap; }
td.scope, .threat td:nth-child(2) { white-space: nowrap; }
tr.claimed th, tr.verified th, tr.audited th { text-decoration: underline 3px; text-underline-offset: 5px; }
tr.claimed th { text-decoration-color: var(--claimed); } tr.verified th { text-decoration-color: var(--verified); }
tr.audited th { text-decoration-color: var(--audited); }
.plain td { white-space: nowrap; } .plain td.words { white-space: normal; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .8rem; margin: .6rem 0; }
dt { font-size: .84rem; color: var(--soft); } dd { margin: 0; font-weight: 600; }
.pictures { display: grid; gap: .9rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; padding: .8rem; max-width: 50rem; }
img { display: block; width: 100%; height: auto; border-radius: 4px; }
figcaption { font-size: .86rem; margin-top: .5rem; }
details { padding: .6rem 1rem; margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
.promise { display: block; font-weight: 600; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
pre { overflow-x: auto; font: .84rem/1.45 ui-monospace, monospace; margin: .6rem 0; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .tiles { grid-template-columns: 1fr 1fr; } .tile:first-child { grid-column: 1 / -1; }
  dl { grid-template-columns: 1fr 1fr; }
  .stack thead { display: none; }
  .stack tr, .stack td, .stack th { display: block; padding: 0; border: 0; }
  .stack tr { padding: .7rem 0; border-top: 1px solid var(--line); }
  .stack tbody tr:first-child { border-top: 0; }
  .stack td:empty { display: none; }
  .stack td[data-name]::before { content: attr(data-name) " "; color: var(--soft); }
}
@media print {
  body { background: #fff; font-size: 11pt; } main { max-width: none; padding: 0; }
  .tiles { grid-template-columns: repeat(5, 1fr); } .pictures { grid-template-columns: 1fr 1fr; }
  figure, .tile, .box, tr, dl > div { break-inside: avoid; } h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""

BASE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{% block title %}{% endblock %}</title>
{% block refresh %}{% endblock %}
<style>"""
    + STYLE
    + """</style>
</head>
<body>
<main>
{% block main %}{% endblock %}
</main>
</body>
</html>
"""
)

#: Of a run's report: the row of tiles, and the three epsilons under a threat model.
SUMMARY = """{% macro row(tiles) %}
<div class="tiles">
{% for tile in tiles %}
<div class="tile {{ tile.kind }}"><span>{{ tile.name }}</span>
<b{% if tile.is_word %} class="word"{% endif %}>{{ tile.value }}</b>
<span>{{ tile.detail }}</span></div>
{% endfor %}
</div>
{% endmacro %}
{% macro epsilons(privacy, open, label) %}
<p>{{ privacy.sentence }}</p>
<div class="card" tabindex="0" role="region" aria-label="{{ label }}"><table class="stack">
<thead><tr><th scope="col">figure</th><th scope="col">epsilon</th><th scope="col">about</th>
<th scope="col">what it is</th></tr></thead>
<tbody>
{% for f in privacy.figures %}
<tr class="{{ f.name }}"><th scope="row">{{ f.name }}</th><td class="epsilon">{{ f.value }}</td>
<td class="scope">{{ f.scope }}</td><td>{% if f.promise %}<span class="promise">{{ f.promise }}</span>
{% endif %}{{ f.detail }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if privacy.reasons %}
<p>Why, in words:</p>
<ul>{% for reason in privacy.reasons %}<li>{{ reason }}</li>{% endfor %}</ul>
{% endif %}
<details{% if open %} open{% endif %}><summary>Threat model: {{ privacy.short }}</summary>
<table class="stack threat"><tbody>
{% for term, word, meaning in privacy.threat %}
<tr><th scope="row">{{ term }}</th><td>{{ word }}</td><td class="soft">{{ meaning }}</td></tr>
{% endfor %}
</tbody></table></details>
{% endmacro %}
{% macro scale(rows) %}
<details><summary>What an epsilon promises</summary>
<div class="scroll" tabindex="0" role="region" aria-label="What an epsilon promises"><table>
<thead><tr><th scope="col">epsilon</th><th scope="col">what it is</th>
<th scope="col">who guesses between two equally likely possibilities is still wrong in at least</th></tr></thead>
<tbody>
{% for epsilon, words, wrong in rows %}
<tr><th scope="row">{{ epsilon }}</th><td>{{ words }}</td><td>{{ wrong }}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endmacro %}
"""

RUN = """{% extends "base" %}
{% import "summary" as summary %}
{% macro pairs(rows) %}
<dl>
{% for name, value in rows %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}
</dl>
{% endmacro %}
{% macro pictures(shown) %}
<div class="pictures">
{% for picture in shown %}
<figure><img src="{{ picture.source }}" alt="{{ picture.alt }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}
</div>
{% endmacro %}
{% block title %}{{ title }}{% endblock %}
{% block refresh %}
{% if live %}<!--live--><meta http-equiv="refresh" content="{{ live.seconds }}"><!--/live-->{% endif %}
{% endblock %}
{% block main %}
<p class="kicker">fedpriv, report of a run</p>
<h1>{{ title }}</h1>
<p class="soft">{{ subtitle }}</p>
{{ summary.row(tiles) }}
{% if live %}
<!--live--><div class="box"><p><strong>This run goes on.</strong> {{ live.words }}</p></div><!--/live-->
{% endif %}
{% for box in boxes %}
<div class="box" role="note"><p><strong>{{ box.title }}</strong> {{ box.text }}</p>
{% if box.lines %}<ul>{% for item in box.lines %}<li>{{ item }}</li>{% endfor %}</ul>{% endif %}</div>
{% endfor %}

<h2>Privacy</h2>
{% if privacy %}
{{ summary.epsilons(privacy, true, "The three epsilons") }}
{% else %}
<p>The three epsilons are written when the run ends.</p>
{% endif %}
{% for other in others %}
<h3>Also seen by: {{ other.observer }}</h3>
<p class="soft">Another threat model: these epsilons and the ones above are not comparable.</p>
{{ summary.epsilons(other, false, "The three epsilons, seen by " ~ other.observer) }}
{% endfor %}
{{ summary.scale(epsilons) }}
<h3>What these figures rest on</h3>
<ul>{% for line in assumptions %}<li>{{ line }}</li>{% endfor %}</ul>

<h2>Learning</h2>
{% if learning %}{{ pictures(learning) }}{% else %}<p>No round has been evaluated yet.</p>{% endif %}

<h2>Spending and noise</h2>
{% if spending %}{{ pictures(spending) }}{% else %}<p>No round recorded an epsilon or a norm.</p>{% endif %}
{% if releases %}
<h3>What was released</h3>
<div class="card" tabindex="0" role="region" aria-label="What was released"><table class="plain">
<thead><tr><th scope="col">mechanism</th><th scope="col">parameters</th><th scope="col">releases</th>
<th scope="col">clients</th><th scope="col">most by one</th>
<th scope="col">threat model</th></tr></thead>
<tbody>
{% for row in releases %}
<tr><th scope="row">{{ row.mechanism }}</th><td class="words">{{ row.parameters }}</td><td>{{ row.total }}</td>
<td>{{ row.clients }}</td><td>{{ row.most }}</td><td class="soft">{{ row.threat }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Counted in ledger.jsonl, lost replies included. A multiplier is the noise's standard
deviation (Laplace: scale) divided by the sensitivity under the stated neighbouring data.</p>
{% endif %}
{% if audit %}<h2>Audit</h2>{{ pictures(audit) }}{% endif %}
{% if attacks %}
<h2>Membership inference</h2>
<p>How well can an attacker tell a training example from one that nobody trained on? Chance is a balanced accuracy, and
an AUC, of 0.5. The intervals (95 %) are over examples, for this one model.</p>
<div class="card" tabindex="0" role="region" aria-label="Attacks"><table class="plain stack">
<thead><tr>{% for name in attacks.header %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in attacks.rows %}
<tr>{% for name in attacks.header %}<td data-name="{{ name }}">{{ row[loop.index0] }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<p><strong>Beside the guarantee.</strong> {{ attacks.guarantee }}</p>
<ul>{% for line in attacks.verdicts %}<li>{{ line }}</li>{% endfor %}</ul>
<details><summary>Controls (intervals one-sided at 99.9 %)</summary>
<ul>{% for line in attacks.controls %}<li>{{ line }}</li>{% endfor %}</ul></details>
{{ pictures(attack_pictures) }}
{% endif %}
{% if labels %}<h2>Data</h2>{{ pictures(labels) }}{% endif %}

<h2>Cost</h2>
<div class="card">{{ pairs(cost) }}</div>

<h2>Details</h2>
{% if method_figures %}
<details><summary>The method's own figures</summary>
<div class="scroll" tabindex="0" role="region" aria-label="The method's own figures">
<table class="plain">
<thead><tr><th scope="col">figure</th><th scope="col">first round</th><th scope="col">last round</th></tr></thead>
<tbody>
{% for name, first, last in method_figures %}
<tr><th scope="row">{{ name }}</th><td>{{ first }}</td><td>{{ last }}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}
<details><summary>Configuration</summary>
<pre tabindex="0" role="region" aria-label="Configuration">{{ config_text }}</pre></details>
<details><summary>Versions</summary>{{ pairs(versions) }}</details>
{% endblock %}
"""

COMPARISON = """{% extends "base" %}
{% import "summary" as summary %}
{% block title %}{{ title }}{% endblock %}
{% block main %}
<p class="kicker">fedpriv, comparison of runs</p>
<h1>{{ title }}</h1>
<p class="soft">{{ subtitle }}</p>
{% if warning %}<div class="box" role="note"><p><strong>{{ warning }}</strong></p></div>{% endif %}
{% for table in tables %}
<h2>{{ table.title }}</h2>
<p>{{ table.sentence }}</p>
<div class="card" tabindex="0" role="region" aria-label="{{ table.title }}"><table class="plain stack">
<thead><tr>{% for name in table.header %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for name in table.header %}<td data-name="{{ name }}">{{ row[loop.index0] }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% if table.notes %}
<p>Reasons recorded by the account:</p>
<ul>{% for note in table.notes %}<li>{{ note }}</li>{% endfor %}</ul>
{% endif %}
{% endfor %}
{{ summary.scale(epsilons) }}
<p class="soft">{{ note }}</p>
{% if picture %}
<h2>Learning</h2>
<figure><img src="{{ picture.source }}" alt="{{ picture.alt }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endif %}
{% if left_out %}
<h2>Left out</h2>
<ul>{% for name, reason in left_out %}<li><code>{{ name }}</code>: {{ reason }}</li>{% endfor %}</ul>
{% endif %}
{% include "runs" %}
{% endblock %}
"""
