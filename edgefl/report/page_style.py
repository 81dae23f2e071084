"""The page's style: it follows the reader's light or dark system, and needs no file besides the page."""

from edgefl.report.drawing import COLOURS

_GROUND = {
    "page": ("#f6f7f9", "#14171b"),
    "card": ("#ffffff", "#1d2126"),
    "line": ("#d3d9e0", "#3a424d"),
    "link": ("#0b5cad", "#8cc4ff"),
}


def _variables(place: int) -> str:
    return "".join(f"--{name}:{each[place]};" for name, each in {**_GROUND, **COLOURS}.items())


RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
header,main,nav{max-width:112rem;margin:0 auto;padding:0 clamp(.75rem,2vw,2rem)}
header{padding-top:1.5rem}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2rem 0 .75rem}
h3{font-size:1rem;margin:0 0 .25rem}
p{margin:.25rem 0}
a{color:var(--link)}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:1rem 0 0}
nav a{display:inline-block;padding:.25rem 0}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem;margin:0;min-width:0}
.card svg{display:block;width:100%;height:auto;max-width:44rem}
.note,.missing p{color:var(--muted);font-size:.9rem}
.missing{border-style:dashed}
figcaption{font-size:.9rem;margin-top:.5rem}
details{margin-top:.5rem}
summary{cursor:pointer;color:var(--link);padding:.25rem 0}
.wide{overflow:auto;max-height:24rem}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.15rem .75rem .15rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.number,th.number{text-align:right}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.75rem 0 0;font-size:.9rem}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
footer{max-width:112rem;margin:2rem auto 0;padding:0 clamp(.75rem,2vw,2rem) 2rem;color:var(--muted);font-size:.85rem}
@media(max-width:30rem){dl{grid-template-columns:1fr}dd{margin-bottom:.35rem}}
"""  # noqa: E501

STYLE = (
    ":root{color-scheme:light "
    f"dark;{_variables(0)}}}@media(prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}{RULES}"
)
