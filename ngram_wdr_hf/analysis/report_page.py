"""A self-contained HTML page with text, tables and pictures."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import IO

from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --muted: #5b616a; --back: #ffffff; --card: #f5f6f8;
  --line: #dadde2; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e7e9; --muted: #a3a9b3; --back: #16181c; --card: #202329; --line: #3a3f47; --link: #8ab4f8; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; max-width: 62rem; }
.muted { color: var(--muted); }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; margin: 1rem 0 0; padding: .6rem .9rem;
  background: var(--card); border-radius: .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: 600; }
.number { text-align: right; }
td.number { white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 1.5rem; }
figure { margin: 1rem 0; }
figure .scroll { background: #ffffff; border: 1px solid var(--line); border-radius: .5rem; padding: .4rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
img.wide { min-width: 44rem; }
figcaption { margin-top: .5rem; }
figcaption p { margin: .25rem 0; }
details { margin: .75rem 0; }
summary { cursor: pointer; }
"""


@dataclass
class Section:
    r"""
    A section of the page, listed in the table of contents.

    Args:
        title (`str`): The heading.
        parts (`list[str]`): Its content, in pieces of HTML.
    """

    title: str
    parts: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the HTML of a complete page: title, subtitle, table of contents, sections. No other file is needed."""
    contents = "".join(f'<li><a href="#{part.anchor}">{escape(part.title)}</a></li>' for part in sections)
    body = "\n".join(
        f'<section id="{part.anchor}">\n<h2>{escape(part.title)}</h2>\n{"".join(part.parts)}</section>'
        for part in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
<p class="muted">{escape(subtitle)}</p>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
</header>
{body}
</main>
</body>
</html>
"""


def paragraph(text: str, muted: bool = False) -> str:
    kind = ' class="muted"' if muted else ""
    return f"<p{kind}>{escape(text)}</p>\n"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table whose first row is the header. Columns of numbers are right-aligned."""
    kinds = [' class="number"' if all(map(_is_number, column[1:])) else "" for column in zip(*rows, strict=True)]

    def row_of(cells: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    head = f"<thead><tr>{row_of(rows[0], 'th')}</tr></thead>"
    body = "".join(f"<tr>{row_of(row, 'td')}</tr>\n" for row in rows[1:])
    return f'<div class="scroll"><table>{head}\n<tbody>{body}</tbody></table></div>\n'


def _is_number(cell: str) -> bool:
    return cell == "" or cell.strip("-−*%").replace(",", "").replace(".", "").isdigit()


def folded(summary: str, content: str) -> str:
    """Return HTML that hides `content` until the summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>\n"


def picture(
    drawing: Figure | Callable[[IO[bytes]], object],
    description: str,
    sentences: Sequence[str] = (),
    dpi: int = 120,
    is_wide: bool = False,
) -> str:
    r"""
    Return the HTML of a plot with its caption; the picture is part of it.

    Args:
        drawing (`Figure` or `Callable`): The plot, or a function that saves it as PNG to a file.
        description (`str`): The alternative text.
        sentences (`Sequence[str]`, *optional*): The paragraphs of the caption, none by default.
        dpi (`int`, *optional*, defaults to 120): Resolution of a `Figure`.
        is_wide (`bool`, *optional*, defaults to `False`): Whether small screens scroll instead of shrinking it.
    """
    file = io.BytesIO()
    if isinstance(drawing, Figure):
        drawing.savefig(file, dpi=dpi)
    else:
        drawing(file)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    kind = ' class="wide"' if is_wide else ""
    image = f'<img{kind} alt="{escape(description, quote=True)}" src="data:image/png;base64,{data}">'
    caption = "".join(paragraph(sentence) for sentence in sentences)
    return f'<figure><div class="scroll">{image}</div><figcaption>{caption}</figcaption></figure>\n'


def side_by_side(figures: Sequence[str]) -> str:
    """Return HTML that shows figures, given as HTML, in a row if the screen is wide enough, else below each other."""
    return f'<div class="figures">{"".join(figures)}</div>\n'
