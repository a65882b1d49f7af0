"""Parts of a page that needs nothing else to be read, printed or heard. Pure. [PI-6, PI-9]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def page(title: str, style: str, head: str, body: str, foot: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1>{head}</header>"
        f"{body}<footer>{foot}</footer></main></body></html>\n"
    )


def cards(figures: Iterable[tuple[str, str]]) -> str:
    """The figures that matter most, each with what it is."""
    items = "".join(f"<li><b>{escape(figure)}</b>{escape(what)}</li>" for figure, what in figures)
    return f'<ul class="cards">{items}</ul>'


def section(title: str, content: str, *, name: str = "") -> str:
    """A part of the page; with a name there can be links to it."""
    named = f' id="{name}"' if name else ""
    return f"<section{named}><h2>{escape(title)}</h2>{content}</section>"


def behind(summary: str, content: str) -> str:
    """The figures of a plot, opened when they are wanted."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1
) -> str:
    """A table whose first columns are words; the others are numbers, set to the right."""
    styles = ["" if place < words else ' class="number"' for place in range(len(columns))]
    head = "".join(
        f'<th scope="col"{style}>{escape(name)}</th>'
        for name, style in zip(columns, styles, strict=True)
    )
    body = "".join(_row(row, styles) for row in rows)
    return (
        f'<div class="wide"><table class="narrow"><caption>{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str], styles: Sequence[str]) -> str:
    cells = "".join(
        f"<td{style}>{escape(cell)}</td>" for cell, style in zip(row[1:], styles[1:], strict=True)
    )
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'
