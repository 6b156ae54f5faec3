"""How the page of `iecl doctor` looks: light or dark as the reader's system is, from a telephone to a wall."""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1d2326; --soft: #5f6b70; --line: #e2e4df;
  --accent: #0b6e6e; --warn: #b3541e; --hint: #6b6f9c; }
@media (prefers-color-scheme: dark) { :root { --back: #15191b; --card: #1d2326; --ink: #e8ecec; --soft: #9aa7ab;
  --line: #2e373b; --accent: #5cc3bd; --warn: #f0a05f; --hint: #a9aee0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
header { border-bottom: 3px solid var(--accent); margin-bottom: 1.5rem; }
h1 { font-size: 1.9rem; margin: 0; overflow-wrap: anywhere; }
header p { color: var(--soft); margin: 0 0 .75rem; max-width: 60rem; } header b { color: var(--ink); }
header p:first-of-type { color: var(--ink); font-size: 1.15rem; margin: .25rem 0 .75rem; }
.command { white-space: normal; overflow-wrap: anywhere; padding: .25rem .5rem; user-select: all; }
h2 { font-size: 1.25rem; margin: 0 0 .25rem; }
h2 small { color: var(--soft); font-weight: 400; margin-left: .35rem; }
section { margin: 0 0 2.25rem; scroll-margin-top: 1rem; }
section > p { margin: 0 0 .75rem; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .94rem; }
th, td { text-align: left; padding: .34rem .75rem .34rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody th, table:not(.bars) th { font-weight: 600; white-space: nowrap; }
tr.none { color: var(--soft); } tr.none th { font-weight: 400; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.threshold { color: var(--soft); white-space: nowrap; }
a { color: var(--accent); text-decoration: none; } a:hover, a:focus { text-decoration: underline; }
.sure { border: 1px solid; border-radius: 1rem; padding: 0 .55rem; font-size: .82rem; white-space: nowrap; }
.certain { color: var(--accent); } .likely { color: var(--warn); } .hint { color: var(--hint); }
tr.none .sure { opacity: .55; }
.mark { color: var(--ink); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem; }
.tile { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem;
  display: flex; flex-direction: column; gap: .4rem; }
.tile.pair { grid-column: span 2; }
.pictures { display: flex; gap: .4rem; height: 8.25rem; }
.pictures img { flex: 1 1 0; min-width: 0; width: 100%; height: 100%; object-fit: contain; background: var(--back);
  border-radius: .25rem; }
.pixels { image-rendering: pixelated; }
.missing { flex: 1; display: grid; place-items: center; color: var(--soft); font-size: .8rem; border-radius: .25rem;
  border: 1px dashed var(--line); }
figcaption { display: flex; flex-direction: column; font-size: .76rem; line-height: 1.35; color: var(--soft); }
figcaption span { overflow-wrap: anywhere; min-width: 0; }
.name { color: var(--ink); } .label { margin-bottom: .15rem; }
.value { color: var(--accent); font-variant-numeric: tabular-nums; }
.more { font-size: .85rem; color: var(--soft); margin: .5rem 0 0; }
.bars th { font-weight: 400; overflow-wrap: anywhere; white-space: normal; width: 14rem; }
table.list th { font-weight: 400; white-space: normal; overflow-wrap: anywhere; }
.bars .number { width: 4.5rem; }
.bar i { display: block; height: .8rem; margin-top: .3rem; background: var(--accent); border-radius: .2rem;
  min-width: 1px; }
.bar { min-width: 8rem; }
code { font-size: .88em; background: var(--card); border: 1px solid var(--line); border-radius: .25rem; padding: 0 .3em;
  white-space: nowrap; }
@media screen and (max-width: 44rem) { .overview :is(th, td):nth-child(n+3):not(:nth-child(5)) { display: none; }
  .bars th { width: 8rem; } .bar { min-width: 4rem; }
  .advice tr { display: grid; grid-template-columns: 8rem 1fr; border-bottom: 1px solid var(--line); }
  .advice :is(th, td) { border: 0; padding-bottom: 0; } .advice td:nth-child(n+3) { grid-column: 2; }
  .advice td:last-child { padding-bottom: .4rem; color: var(--soft); } }
@media print { :root { color-scheme: light; --back: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc;
  --accent: #0b6e6e; --warn: #8a3d10; --hint: #4a4e7c; } * { print-color-adjust: exact; } body { font-size: 12px; }
  .tile, tr { break-inside: avoid; } h2, section > p { break-after: avoid; } main { padding: 0; } }
"""
