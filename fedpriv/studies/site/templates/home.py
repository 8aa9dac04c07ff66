"""The landing page."""

HOME = """{% extends "base" %}
{% import "parts" as parts %}
{% block main %}
<div class="hero">
<h1>Private federated learning, with its claims checked</h1>
<p class="lead">Papers on differentially private federated learning state an epsilon. fedpriv runs their methods,
computes a bound for what was really sent, and attacks the code. Every run shows three figures side by side.</p>
</div>

{% if sentences %}
<section aria-labelledby="found">
<h2 id="found">What was found</h2>
<ul class="found">{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
{% if pictures %}{{ parts.pictures(pictures, root) }}{% endif %}
</section>
{% endif %}

<section aria-labelledby="three">
<h2 id="three">Three epsilons</h2>
<div class="three">
<div class="tile claimed"><h3>Claimed</h3>
<p>What the paper’s own formula says, with its scope: the run, a round, a coordinate.</p></div>
<div class="tile verified"><h3>Verified</h3>
<p>An upper bound that a sound analysis gives for what was really sent, under a stated threat model.</p></div>
<div class="tile audited"><h3>Audited</h3>
<p>A lower bound, measured by attacking the real release code.</p></div>
</div>
<p>Several papers do not keep their promise as printed. Every method can run as <em>published</em>, exactly as printed,
and as <em>repaired</em>, with the smallest change that makes the verified epsilon finite and true.</p>
</section>

<section aria-labelledby="commands">
<h2 id="commands">Two commands</h2>
<div class="two">
<div class="card command"><pre tabindex="0">make run</pre>
<p>installs everything, then trains Fed-CAD on scikit-learn’s digits</p></div>
<div class="card command"><pre tabindex="0">make test</pre>
<p>installs everything, then runs all tests</p></div>
</div>
</section>

{% if papers %}
<section aria-labelledby="papers">
<h2 id="papers">The papers</h2>
<p>What became of each paper’s claims, and what leaks.</p>
<div class="cards">
{% for paper in papers %}
<article class="card paper">
<h3><a href="{{ root }}{{ paper.path }}">{{ paper.short }}</a></h3>
<p class="soft">{{ paper.title }}{% if paper.authors %} · {{ paper.authors }}{% endif %}</p>
<p>{{ paper.idea }}</p>
{{ parts.counts(paper.verdicts) }}
</article>
{% endfor %}
</div>
</section>
{% endif %}

{% if boards %}
<section aria-labelledby="best">
<h2 id="best">Best at equal privacy</h2>
<p>The most accurate method at each verified epsilon, one card per threat model. Figures of two cards are not
comparable: they protect other things from other eyes.</p>
<div class="cards">
{% for board in boards %}
<article class="card">
<h3><a href="{{ root }}leaderboard.html#{{ board.id }}">{{ board.title }}</a></h3>
<table>
<thead><tr><th scope="col">epsilon</th><th scope="col">best method</th><th scope="col">accuracy</th></tr></thead>
<tbody>
{% for target, entries in board.best %}
<tr><th scope="row">{{ target|plain }}</th>
{% if entries %}
<td>{% for entry in entries %}{{ entry.label }}{{ ", " if not loop.last }}{% endfor %}</td>
<td class="figure">{{ entries[0].accuracy|measured }} %</td>
{% else %}
<td class="soft" colspan="2">none reaches it</td>
{% endif %}
</tr>
{% endfor %}
{% if board.reference.mean is not none %}
<tr class="soft"><td>∞</td><td>without privacy</td><td class="figure">{{ board.reference|measured }} %</td></tr>
{% endif %}
</tbody>
</table>
</article>
{% endfor %}
</div>
<p><a href="{{ root }}leaderboard.html">The whole leaderboard</a></p>
</section>
{% endif %}

<section aria-labelledby="origins">
<h2 id="origins">Where results come from</h2>
<div class="card scroll" tabindex="0" role="region" aria-labelledby="origins">
<table>
<thead><tr><th scope="col">study</th><th scope="col">runs</th><th scope="col">seeds</th><th scope="col">date</th>
<th scope="col">made by</th><th scope="col">machine</th></tr></thead>
<tbody>
{% for row in origins %}
<tr><th scope="row">{{ row.what }}</th><td><a href="{{ root }}{{ row.path }}">{{ many(row.runs, "run") }}</a></td>
<td>{{ row.seeds }}</td><td class="nowrap">{{ row.date }}</td><td>{{ row.commits }}</td>
<td>{{ row.machine }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
</section>
{% endblock %}
"""
