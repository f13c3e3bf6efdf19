"""The HTML page of scripts/report.py: text, tables of JSON objects and charts, in one file that needs
no network. Needs matplotlib."""

import html
import io
import math
import re
import sys
import unicodedata
import warnings

try:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker  # noqa: F401 (for report.py)
except ImportError:
    sys.exit("report.py: it needs matplotlib: apt-get install python3-matplotlib, "
             "or pip install matplotlib")

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--raised:#f6f7f8;--ink:#1c2024;--soft:#5b636b;
--line:#d9dde1;--good:#00734f;--good-ground:#e5f4ee;--bad:#b03a00;--bad-ground:#fcece4}
@media screen and (prefers-color-scheme:dark){:root{--ground:#14171a;--raised:#1d2125;--ink:#e4e7ea;
--soft:#9aa3ab;--line:#363c42;--good:#4fd1a1;--good-ground:#13291f;--bad:#ff9a66;
--bad-ground:#33200f}svg{filter:invert(1) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:1rem/1.55 system-ui,sans-serif}
main{max-width:70rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.25rem;margin:2.75rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--line)}
h1,h2,p,figcaption{overflow-wrap:anywhere}
p{max-width:44rem;margin:.75rem 0}
section+section{margin-top:5rem}
.summary{color:var(--soft);font-size:1.05rem}
.note{border-left:4px solid var(--soft);background:var(--raised);padding:.55rem .9rem}
.note strong{margin-right:.5rem}
.good{border-color:var(--good);background:var(--good-ground)}.good strong{color:var(--good)}
.bad{border-color:var(--bad);background:var(--bad-ground)}.bad strong{color:var(--bad)}
pre{background:var(--raised);border:1px solid var(--line);padding:.75rem 1rem;overflow-x:auto}
.table{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.925rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .75rem;text-align:left;vertical-align:baseline;white-space:nowrap;
border-bottom:1px solid var(--line)}
td.wide{white-space:normal;min-width:18rem}
thead th{color:var(--soft);white-space:normal;vertical-align:bottom}
th:first-child{padding-left:0;position:sticky;left:0;background:var(--ground);white-space:normal}
.right{text-align:right}
figure{display:inline-block;width:min(100%,33rem);margin:.75rem .5rem .75rem 0;vertical-align:top}
figcaption{font-weight:600}
svg{display:block;width:100%;height:auto}
@media (max-width:32rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.5rem}}
@media print{figure,tr,pre{break-inside:avoid}.table{overflow:visible}}
"""

# Colours of Okabe and Ito (2008), which all eyes tell apart, darkened for a white background, and
# markers for printers without colours.
COLOURS = ["#0067a3", "#c95000", "#008a63", "#b0558d", "#a87400", "#2f9bd6", "#5f666d", "#7c7a00"]
MARKERS = "os^Dvp*X"
pyplot.rcParams.update({
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "axes.edgecolor": "#5b636b",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#e0e3e6", "axes.axisbelow": True, "font.family": "sans-serif",
    "lines.linewidth": 1.4, "lines.markersize": 4, "legend.frameon": False,
    "figure.constrained_layout.use": True})
warnings.filterwarnings("ignore", message="Glyph")


# ---- text

def clean(text):
    """Text without the characters that control a terminal or reorder the line."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else "\ufffd"
                   for c in str(text))


def escape(text):
    """HTML of a text, whose names may be broken after colons and commas."""
    return re.sub(r"([:,])(?=[^\s:,])", r"\1<wbr>", html.escape(clean(text), quote=False))


def at(item, path):
    """The member at a path such as "error.bf16", or None."""
    for key in path.split("."):
        item = item.get(key) if isinstance(item, dict) else None
    return item


def number(digits=0, unit="", sign=""):
    """A function that formats a number; one that rounds to -0 has no sign."""
    def form(value):
        is_minus_zero = value < 0 == round(value, digits)
        return f"{0 if is_minus_zero else value:{'' if is_minus_zero else sign}.{digits}f}{unit}"
    return form


def share(value):
    if value is None:
        return "inf"
    percent = 100 * value
    digits = 0 if percent == 0 else 3 if abs(percent) < 0.1 else 2 if abs(percent) < 10 else 1
    return "<.001%" if 0 < abs(percent) < 0.001 else f"{percent:.{digits}f}%"


def small(value):
    return "0" if value == 0 else f"{value:.1e}"


def size(value):
    return f"{value / 2**20:.1f} MiB" if value < 2**30 else f"{value / 2**30:.2f} GiB"


def scale(value):
    exponent = round(math.log2(value))
    return f"2^{exponent}" if abs(value / 2**exponent - 1) < 1e-7 else f"{value:g}"


CHANGE, FACTOR, DECIBEL = number(3, " %", "+"), number(2, " x"), number(1)


# ---- parts of the page

class Page:
    def __init__(self):
        self.parts = []

    def add(self, tag, text, name=""):
        names = f' class="{name}"' if name else ""
        self.parts.append(f"<{tag}{names}>{escape(text)}</{tag}>")

    def title(self, text, summary):
        self.add("h1", text)
        self.add("p", summary, "summary")

    def note(self, kind, head, text):
        self.parts.append(f'<p class="note {kind}"><strong>{escape(head)}</strong> '
                          f'{escape(text)}</p>')

    def code(self, text):
        self.parts.append(f'<pre tabindex="0">{html.escape(clean(text))}</pre>')

    def cells(self, headings, rows):
        """A table of texts. Columns with "<" before their headings are left-aligned."""
        def cell(column, text, head=False):
            left = column == 0 or headings[column].startswith("<")
            name = ' class="right"' if not left else ' class="wide"' if column and len(text) > 40 else ""
            tag = "th" if head or column == 0 else "td"
            scope = "" if tag == "td" else ' scope="col"' if head else ' scope="row"'
            return f"<{tag}{scope}{name}>{escape(text)}</{tag}>"
        head = "".join(cell(i, heading.lstrip("<"), True) for i, heading in enumerate(headings))
        body = "\n".join("<tr>" + "".join(cell(i, text) for i, text in enumerate(row)) + "</tr>"
                         for row in rows)
        self.parts.append(f'<div class="table" tabindex="0"><table>\n<thead><tr>{head}</tr></thead>'
                          f"\n<tbody>{body}</tbody></table></div>")

    def table(self, title, note, rows, columns):
        """A table of the members of objects. Columns are (heading, path, format[, path that must
        not be false, "fp32" or absent]). Rows and columns without any figure are left out."""
        def cell(row, heading, path, form=str, needs=None):
            if needs and at(row, needs) in (None, False, 0, "fp32"):
                return "-"
            above, _, key = path.rpartition(".")
            holder, value = at(row, above) if above else row, at(row, path)
            # null stands for a number that is not finite, which only shares can be.
            is_null = form is share and isinstance(holder, dict) and key in holder
            return form(value) if value is not None or is_null else "-"
        table = [[cell(row, *column) for column in columns] for row in rows]
        table = [cells for cells in table if any(c != "-" for c in cells[1:])]
        kept = [i for i in range(len(columns)) if not i or any(cells[i] != "-" for cells in table)]
        if not table:
            return
        self.add("h2", title)
        if note:
            self.add("p", note)
        self.cells([columns[i][0] for i in kept], [[cells[i] for i in kept] for cells in table])

    def figure(self, title, draw, height=2.9, width=5.0):
        """A chart: draw(axes) draws it, and returns false if there is nothing to see."""
        figure, axes = pyplot.subplots(figsize=(width, height))
        try:
            if draw(axes) is False:
                return
            labels = axes.get_legend_handles_labels()[1]
            if labels: # above the axes, whose height stays
                across = max(1, 60 // (max(map(len, labels)) + 8))
                figure.set_figheight(height + 0.2 * (-(-len(labels) // across) - 1))
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=across)
            out = io.StringIO()
            figure.savefig(out, format="svg")
        finally:
            pyplot.close(figure)
        svg = re.sub(r".*(?=<svg )|<metadata>.*?</metadata>", "", out.getvalue(), flags=re.S)
        svg = re.sub(r"<svg [^>]*?viewBox", f'<svg role="img" aria-label="{title}" viewBox', svg)
        svg = re.sub(r' version="1\.1"| xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
        prefix = f"f{len(self.parts)}-"
        svg = re.sub(r'(\bid="|href="#|url\(#)', lambda match: match.group(1) + prefix, svg)
        self.parts.append(f"<figure><figcaption>{escape(title)}</figcaption>\n{svg}</figure>")

    def text(self, title):
        return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                '<meta http-equiv="Content-Security-Policy" '
                "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
                f"<title>{html.escape(clean(title))}</title>\n<style>{STYLE}</style>\n</head>\n"
                "<body>\n<main>\n" + "\n".join(self.parts) + "\n</main>\n</body>\n</html>\n")
