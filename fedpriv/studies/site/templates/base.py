"""What all pages share: the frame, and the parts that several of them use."""

BASE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{% block title %}{{ title }}{% endblock %}{% if path != "index.html" %} · fedpriv{% endif %}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{{ root }}{{ style_file }}">
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<div class="wide">
<a class="brand" href="{{ root }}index.html"{% if path == "index.html" %} aria-current="page"{% endif %}>fedpriv</a>
<nav aria-label="Site">
<ul>
{% for label, href in navigation %}
<li><a href="{{ root }}{{ href }}"{% if href == path %} aria-current="page"{% endif %}>{{ label }}</a></li>
{% endfor %}
</ul>
</nav>
</div>
</header>
<main id="main" tabindex="-1">
{% block main %}{% endblock %}
</main>
<footer class="wide">
<p>Made by <code>python -m fedpriv.site</code> from the results in the repository. These pages load nothing from the
network.</p>
</footer>
{% block script %}{% endblock %}
</body>
</html>
"""

PARTS = """
{% macro badge(one, count=none) %}
<span class="badge {{ one.kind }}"><span aria-hidden="true">{{ one.sign }}</span>
{%- if count is not none %} {{ count }}{% endif %} {{ one.words if count in (none, 1) else one.several }}</span>
{% endmacro %}

{% macro script(root) %}
<script src="{{ root }}{{ script_file }}"></script>
{% endmacro %}

{% macro counts(verdicts) %}
<ul class="badges">
{% for one, count in verdicts if count %}
<li>{{ badge(one, count) }}</li>
{% else %}
<li class="soft">no claims yet</li>
{% endfor %}
</ul>
{% endmacro %}

{% macro pairs(rows) %}
<dl>
{% for name, value in rows %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% endmacro %}

{% macro run_links(links, root) %}
{% if links.links %}
<span class="runs">{{ links.what }}{{ "s" if links.links|length > 1 }}
{% for link in links.links[:8] %}
{% if link.href %}
<a href="{{ root }}{{ link.href }}">{{ link.text }}</a>
{% else %}
<span title="this run was not kept">{{ link.text }}</span>
{% endif %}
{% endfor %}
{% if links.links|length > 8 %}and {{ links.links|length - 8 }} more{% endif %}
</span>
{% endif %}
{% endmacro %}

{% macro pictures(all, root) %}
<div class="pictures">
{% for picture in all %}
{% set shown = picture.shown %}
<figure id="{{ picture.id }}"><a href="{{ root }}{{ shown.light }}"><picture>
<source srcset="{{ root }}{{ shown.dark }}" media="screen and (prefers-color-scheme: dark)">
<img src="{{ root }}{{ shown.light }}" alt="{{ shown.alt }}" width="{{ shown.width }}" height="{{ shown.height }}"
loading="lazy"></picture></a>
<figcaption>{{ shown.caption }}</figcaption></figure>
{% endfor %}
</div>
{% endmacro %}

{% macro origin(rows, runs, runs_path, root) %}
<h2 id="provenance">Where these figures come from</h2>
<div class="card">{{ pairs(rows) }}</div>
<p><a href="{{ root }}{{ runs_path }}">{{ "The run" if runs == 1 else "All " ~ many(runs, "run") }}</a>, with command,
options and seed{{ "" if runs == 1 else " each" }}. A run named above leads to its own page where it has one, and to
its line in that list otherwise.</p>
{% endmacro %}
"""
