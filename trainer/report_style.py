"""The style sheet of a report: light and dark by the reader's setting, four colours that differ in both."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{--ground:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#5b6470;--line:#dfe3e8;
--c0:#1f6feb;--c1:#c2410c;--c2:#15803d;--c3:#9333ea}
@media (prefers-color-scheme:dark){:root{--ground:#14171b;--card:#1d2127;--ink:#e6e9ed;--soft:#9aa4b0;--line:#343b44;
--c0:#6cb0ff;--c1:#ff9d5c;--c2:#5fd08a;--c3:#cf9bff}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 10px}h3{font-size:15px;margin:0 0 4px}
header p,section>p,figcaption,.none{color:var(--soft);margin:4px 0;overflow-wrap:anywhere}
figcaption{font-size:12.5px}
.figures{display:flex;flex-wrap:wrap;gap:10px;margin:20px 0 0}
.figures div{background:var(--card);border-radius:8px;padding:10px 16px}
.figures dt{color:var(--soft);font-size:13px}.figures dd{margin:0;font-size:21px;font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
figure{margin:0;background:var(--card);border-radius:8px;padding:14px 14px 10px}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:0 0 4px;padding:0;font-size:13px}
.legend li::before{content:"";display:inline-block;width:14px;height:3px;margin-right:6px;vertical-align:middle;
background:currentColor}
.legend .c0{color:var(--c0)}.legend .c1{color:var(--c1)}.legend .c2{color:var(--c2)}.legend .c3{color:var(--c3)}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.tick,.name{fill:var(--soft);font-size:12px}.name{text-anchor:middle}
.series{fill:none;stroke-width:1.8;stroke-linejoin:round}.range{opacity:.16;stroke:none}
.series.c0{stroke:var(--c0)}.series.c1{stroke:var(--c1)}.series.c2{stroke:var(--c2)}.series.c3{stroke:var(--c3)}
.range.c0,.dot.c0{fill:var(--c0)}.range.c1,.dot.c1{fill:var(--c1)}
.range.c2,.dot.c2{fill:var(--c2)}.range.c3,.dot.c3{fill:var(--c3)}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:6px 0 18px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 22px 5px 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500;font-size:13px}
pre{background:var(--card);border-radius:8px;padding:14px;overflow-x:auto;font-size:13px;line-height:1.45}
"""
