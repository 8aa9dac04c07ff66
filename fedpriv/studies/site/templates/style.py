"""The site's style: the reports' own, and what only the site has."""

from fedpriv.report.templates import STYLE as REPORT

STYLE = (
    REPORT
    + """
:root { --good: #007a59; --good-page: #e8f5ef; --bad: #b3401a; --bad-page: #fdeee6; --open: #7a5b00;
  --open-page: #fbf4dc; --none: #5c6169; --none-page: #efefec; --chip: #efefec; --focus: #0072B2; }
@media (prefers-color-scheme: dark) { :root { --good: #5fd6ac; --good-page: #16302a; --bad: #ff9d78;
  --bad-page: #3a2119; --open: #ecc75a; --open-page: #33290f; --none: #a2a7af; --none-page: #26292e; --chip: #26292e;
  --focus: #6cbcf0; } }
[hidden] { display: none !important; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { overflow-wrap: break-word; }
a { text-underline-offset: .18em; text-decoration-thickness: 1px; }
a:hover { text-decoration-thickness: 2px; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; border-radius: 3px; }
main:focus { outline: none; }
:target { background: color-mix(in srgb, var(--accent) 13%, transparent); }
section:target, h2:target, h3:target { background: none; }
.skip { position: absolute; left: .5rem; top: -4rem; background: var(--card); padding: .5rem 1rem; z-index: 2; }
.skip:focus { top: .5rem; }
.wide { max-width: 72rem; margin: 0 auto; padding: 0 1.2rem; }
main { max-width: 72rem; padding: 2.6rem 1.2rem 4rem; }
.top { background: var(--card); border-bottom: 1px solid var(--line); }
.top .wide { display: flex; flex-wrap: wrap; align-items: baseline; gap: .1rem 1.8rem; padding-block: .7rem; }
.top ul { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; list-style: none; margin: 0; padding: 0; max-width: none; }
.top a { color: var(--soft); text-decoration: none; display: inline-block; padding: .25rem 0;
  border-bottom: 2px solid transparent; }
.top a:hover { color: var(--ink); border-bottom-color: var(--line); }
.top a[aria-current] { color: var(--ink); border-bottom-color: var(--accent); }
.top .brand { font-weight: 700; color: var(--ink); letter-spacing: -.01em; }
footer { color: var(--soft); font-size: .86rem; padding-bottom: 2.5rem !important; }
h1 { text-wrap: balance; max-width: 50rem; overflow-wrap: anywhere; }
h1.name { font: 600 clamp(1.15rem, 4vw, 1.6rem)/1.3 ui-monospace, monospace; }
h2 { font-size: 1.35rem; margin: 3.2rem 0 .7rem; letter-spacing: -.005em; }
h3 { font-size: 1.05rem; margin: 1.9rem 0 .5rem; line-height: 1.4; }
h4 { font-size: .95rem; margin: 1rem 0 .3rem; }
h2, h3, p, li, dd, figcaption, th { overflow-wrap: anywhere; }
p, ul { max-width: 48rem; }
.lead { font-size: 1.14rem; line-height: 1.6; margin: .9rem 0 1rem; }
.hero { padding: 1.4rem 0 .2rem; }
.hero h1 { font-size: clamp(1.8rem, 6vw, 3rem); line-height: 1.12; letter-spacing: -.025em; }
.figure { font-variant-numeric: tabular-nums; white-space: nowrap; }
b.figure { font-weight: 650; }
td, dd, .soft { font-variant-numeric: tabular-nums; }
.nowrap { white-space: nowrap; }
.tiles { margin: 1.6rem 0; gap: .9rem; }
.three { display: grid; gap: .9rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.three h3 { margin: 0 0 .2rem; font-size: 1.1rem; } .three p { margin: 0 0 .3rem; }
.two { display: grid; gap: .9rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
.command { margin: 0; padding: .5rem 1rem .8rem; } .command p { color: var(--soft); margin: 0; font-size: .92rem; }
.command pre { font-size: 1.05rem; font-weight: 600; margin: .3rem 0; }
.command pre::before { content: "$ "; color: var(--soft); font-weight: 400; }
.cards { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.cards .card { margin: 0; padding: 1.1rem 1.2rem; min-width: 0; }
.cards h3 { margin: 0 0 .2rem; font-size: 1.15rem; }
.cards table { margin-top: .5rem; }
.paper { display: flex; flex-direction: column; } .paper .soft { font-size: .88rem; margin-top: 0; }
.paper .badges { margin-top: auto; padding-top: .7rem; }
.card { padding: .3rem 1.1rem; }
.scroll { overflow-x: auto; overscroll-behavior-x: contain; }
.badges { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem .5rem; padding: 0; margin: .6rem 0; }
.badge { display: inline-block; white-space: nowrap; font-size: .85rem; font-weight: 600; line-height: 1.3;
  padding: .2rem .65rem; border: 1.5px solid; border-radius: 99px; }
.badge > span { display: inline-block; min-width: .8em; text-align: center; }
.badge.holds { color: var(--good); background: var(--good-page); }
.badge.fails { color: var(--bad); background: var(--bad-page); }
.badge.open { color: var(--open); background: var(--open-page); border-style: dashed; }
.badge.untested { color: var(--none); background: var(--none-page); border-style: dotted; }
.claim { margin: .9rem 0; padding: 1.1rem 1.3rem; }
.claim h3 { margin: 0 0 .5rem; max-width: 52rem; } .claim p { max-width: 52rem; }
.interval { display: flex; flex-wrap: wrap; align-items: center; gap: .2rem 1rem; margin-bottom: 0; }
.box { border-left-width: 4px; padding: .9rem 1.2rem; max-width: 52rem; }
.box p + p { margin-top: .5rem; }
.box.good { background: var(--good-page); border-left-color: var(--good); }
thead th { vertical-align: bottom; white-space: nowrap; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0; cursor: pointer;
  text-align: left; white-space: nowrap; }
th button:hover { color: var(--ink); text-decoration: underline; text-underline-offset: .2em; }
th button::after { content: "↕"; opacity: .45; margin-left: .3em; }
th[aria-sort] button { color: var(--ink); font-weight: 650; } th[aria-sort] button::after { opacity: 1; }
th[aria-sort=ascending] button::after { content: "↑"; } th[aria-sort=descending] button::after { content: "↓"; }
.scroll td, .scroll th { padding-right: 1.1rem; }
.card.scroll { padding-inline: 0; } .scroll tr > :first-child, .entries tr > :nth-child(2) { padding-left: 1.1rem; }
.entries tr > .rank, .entries tr > :first-child { padding-right: 0; }
.scroll tbody th, .scroll thead th:first-child:not(.entries *), .entries thead th:nth-child(2) { position: sticky;
  left: 0; z-index: 1; background: var(--card); box-shadow: 1.1rem 0 .8rem -1.4rem var(--soft); }
tr:target > * { background: color-mix(in srgb, var(--accent) 13%, var(--card)) !important; }
.scroll tbody th { min-width: 8.5rem; max-width: 17rem; white-space: normal; }
.scroll td { min-width: 3.2rem; max-width: 24rem; overflow-wrap: break-word; }
.scroll td.figure { white-space: nowrap; overflow-wrap: normal; }
.cells td { min-width: 8.2rem; }
.reported, .under, .runs { display: block; font-size: .84rem; font-weight: 400; color: var(--soft); }
.runs a { display: inline-block; min-width: 1.5rem; padding: .1rem .25rem; text-align: center; }
.entries td, .entries tbody th { min-width: 4.6rem; }
.entries td:nth-child(3) { min-width: 11rem; } .entries td.chosen { min-width: 13rem; }
.entries tbody th { min-width: 8.5rem; }
.entries td.rank { min-width: 2.6rem; font-weight: 650; }
.entries tr.entry:has(td.rank[data-sort="1"]) > * { background: color-mix(in srgb, var(--good) 5%, var(--card)); }
.chosen code { display: inline-block; background: var(--chip); border-radius: 4px; padding: 0 .35rem;
  margin: 0 .15rem .2rem 0; font-size: .8rem; }
.chosen details { border: 0; padding: 0; margin: .1rem 0 0; background: none; }
.chosen summary { font-weight: 400; font-size: .84rem; color: var(--soft); }
.chosen pre { max-width: 22rem; }
.list tbody th { min-width: 16.5rem; max-width: none; font: .84rem/1.5 ui-monospace, monospace; }
.list th span { display: block; } .list th i { font-style: normal; color: var(--soft); }
.list td:last-child { min-width: 24rem; max-width: 40rem; font: .84rem/1.5 ui-monospace, monospace; }
.words { min-width: 15rem !important; }
.strip { display: block; width: 10rem; height: 1.125rem; flex: none; }
.strip path { fill: none; stroke: var(--soft); } .strip .axis { stroke: var(--line); }
.strip .zero { stroke: var(--ink); } .strip .reference { stroke: var(--soft); stroke-dasharray: 2 2; }
.strip .interval { stroke: var(--accent); stroke-width: 3; stroke-linecap: round; opacity: .55; }
.strip circle { fill: var(--accent); }
.chart { display: block; width: 100%; height: auto; font: 13px system-ui, sans-serif; }
.chart text { fill: var(--soft); } .chart .grid { stroke: var(--line); }
.chart polyline { fill: none; stroke: var(--accent); stroke-width: 2.2; stroke-linejoin: round; }
.chart .dots { fill: none; stroke: var(--accent); stroke-width: 7; stroke-linecap: round; }
.found { max-width: 54rem; } .found li { margin: .45rem 0; }
.orderings { list-style: none; padding: 0; max-width: 60rem; } .orderings li { margin: .6rem 0; }
.verdicts li { margin: .3rem 0; }
.board { border-top: 1px solid var(--line); margin-top: 3.4rem; } .board h2 { margin-top: 1.6rem; }
#filters { display: flex; flex-wrap: wrap; align-items: end; gap: .7rem 1rem; padding: .9rem 1.1rem;
  margin: 1.6rem 0; }
#filters p { margin: 0; min-width: 0; } #filters p:first-child { flex: 0 1 22rem; } #filter-board { width: 100%; }
#filters .grow { flex: 1 1 12rem; }
#filters label { display: block; font-size: .84rem; color: var(--soft); margin-bottom: .15rem; }
select, input, #filters button { font: inherit; color: inherit; background: var(--page); border: 1px solid var(--line);
  border-radius: 6px; padding: .4rem .6rem; max-width: 100%; min-height: 2.5rem; }
input { width: 100%; } #filters button { cursor: pointer; } #filters button:hover { border-color: var(--soft); }
#filter-status { align-self: center; color: var(--soft); }
pre { border-radius: 6px; } pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card);
  border: 1px solid var(--line); padding: .8rem 1rem; }
.options { columns: 2 22rem; max-width: none; }
.pictures { margin: 1rem 0; } figure { min-width: 0; } figure a { display: block; overflow-x: auto; }
@media (max-width: 40rem) {
  main { padding-top: 1.6rem; } h2 { margin-top: 2.5rem; }
  .badge { white-space: normal; border-radius: 14px; }
  .scroll tbody th { min-width: 8.5rem; max-width: 10rem; padding-right: .7rem; font-size: .92rem; }
  .list td:last-child { min-width: 16rem; }
  .claim { padding: .9rem 1rem; } figure a img { width: 36rem; max-width: none; }
}
@media print {
  .top nav, #filters, .skip, th button::after, .chosen details, footer { display: none !important; }
  .scroll { overflow: visible; } .card, figure { border-color: #ccc; } .scroll td { min-width: 0 !important; }
  .claim, article { break-inside: avoid; } a { color: inherit; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(6rem, 1fr)); }
}
"""
)
