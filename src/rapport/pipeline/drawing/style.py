"""How the page of a back-test looks: light, dark and on paper; no fonts or scripts from elsewhere.
[PI-9]
"""

from __future__ import annotations

_LIGHT = {
    "ground": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#59636e",
    "line": "#d8dee4",
    "card": "#f6f8fa",
    "s0": "#eef1f4",
    "s1": "#c6d8ea",
    "s2": "#7fabd3",
    "s3": "#3577b0",
    "s4": "#0b3f73",
    "on-dark": "#ffffff",
    "bar": "#3577b0",
    "both": "#8c959f",
    "first": "#c05000",
    "second": "#0072b2",
    "good": "#1a7f37",
    "bad": "#b42318",
}
_DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "soft": "#9ba6b2",
    "line": "#30363d",
    "card": "#161b22",
    "s0": "#1c232b",
    "s1": "#1d3a57",
    "s2": "#2b6396",
    "s3": "#6ea8dc",
    "s4": "#cfe4f8",
    "on-dark": "#0d1117",
    "bar": "#6ea8dc",
    "both": "#7d8590",
    "first": "#f0883e",
    "second": "#56b4e9",
    "good": "#3fb950",
    "bad": "#ff7b72",
}

_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1060px;margin:0 auto;padding:32px 28px 64px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px}
h2{font-size:19px;margin:44px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--line)}
h3{font-size:15px;margin:24px 0 8px}
p.lead,.soft{color:var(--soft)}
p{margin:6px 0 12px}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:20px 0 0;padding:0;list-style:none}
.cards li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 18px;
 min-width:130px}
.cards b{display:block;font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}
.columns{display:flex;flex-wrap:wrap;gap:12px 40px}.columns>div{flex:1 1 440px;max-width:620px}
svg{display:block;width:100%;height:auto;margin:8px 0 10px}
svg text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
 fill:var(--ink)}
svg .small{font-size:11.5px}svg .tiny{font-size:8.5px;opacity:.75}
svg .strong{font-weight:600}
svg .middle{text-anchor:middle}svg .end{text-anchor:end}
svg line{stroke:var(--line)}svg line.curve{stroke:var(--bar);stroke-width:1.5}
svg .s0{fill:var(--s0)}svg .s1{fill:var(--s1)}svg .s2{fill:var(--s2)}
svg .s3{fill:var(--s3)}svg .s4{fill:var(--s4)}
svg .on3,svg .on4{fill:var(--on-dark)}
svg .bar{fill:var(--bar)}svg .both{fill:var(--both)}
svg .first{fill:var(--first)}svg .second{fill:var(--second)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:0 0 6px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);
 vertical-align:top}
td.number,th.number{text-align:right}
table.narrow{width:auto}td:first-child{white-space:nowrap}
details{margin:4px 0 16px}
summary{cursor:pointer;color:var(--soft)}
pre,code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;
 overflow-x:auto;white-space:pre-wrap}
code{overflow-wrap:anywhere}
article{border:1px solid var(--line);border-radius:8px;padding:12px 18px 6px;margin:12px 0;
 break-inside:avoid}
article h3{margin:0 0 4px}
ul.why{list-style:none;margin:6px 0 10px;padding:0 0 0 18px;border-left:2px solid var(--line)}
ul.why li{margin:5px 0}
.true{color:var(--good);font-weight:700}.false{color:var(--bad);font-weight:700}
.unknown{color:var(--soft);font-weight:700}
.mark-first{color:var(--first);font-weight:700}.mark-second{color:var(--second);font-weight:700}
.note{border-left:4px solid var(--first);background:var(--card);padding:8px 14px;margin:8px 0}
footer{margin-top:48px;color:var(--soft);font-size:13px}
@media print{main{max-width:none;padding:0}h2{break-after:avoid}svg,tr{break-inside:avoid}
 details::details-content{content-visibility:visible;display:block}summary{list-style:none}
 *{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def style() -> str:
    """The content of the page's style element."""
    light = _variables(_LIGHT)
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    return f":root{{color-scheme:light dark;{light}}}{dark}{_RULES}"


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
