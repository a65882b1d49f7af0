"""Tables for site.toml that a proposal needs, as comments: the concept where the site has none, and
the source. Pure. [ME-10, ME-13]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rapport.mediation.guessing.guess import Guess
from rapport.mediation.guessing.matching import Becoming, shown_matches
from rapport.mediation.guessing.toml_text import (
    UNSURE,
    comment,
    header,
    open_line,
    slug,
    toml_key,
    toml_of,
)

_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", re.ASCII)
HEADING = 'For site.toml, without the "# " before each line:'


class Speaker(NamedTuple):
    """A source: its name, what it gives, what it would give, and its interpretation."""

    name: str
    given: list[str]
    open: list[str]
    interpretation: str


def into_site(guess: Guess, becoming: Becoming, speakers: list[Speaker]) -> Iterator[str]:
    """The lines, each a comment."""
    tables = [] if becoming.known else [*_concept(guess, becoming)]
    tables += [_source(becoming.concept, speaker) for speaker in speakers]
    if tables:
        yield comment(HEADING)
    for table in tables:
        yield "#"
        yield from (f"# {each}" for each in table)


def source_name(name: str) -> str:
    """The name of a source as it was said, or one like it."""
    return name if _SOURCE.fullmatch(name) else slug(name) or "source"


def _concept(guess: Guess, becoming: Becoming) -> Iterator[list[str]]:
    own = ("concepts", becoming.concept)
    names = [f'{toml_key(match.attribute)} = "number"' for match in becoming.matches.values()]
    yield [header(*own, "attributes"), *names]
    units = [
        f"{toml_key(match.attribute)} = {toml_of(match.unit)}"
        if match.unit
        else open_line(match.attribute, value.unit.likely or "...", match.because)
        for value, match in shown_matches(becoming, guess.values)
    ]
    yield [header(*own, "units"), *units]


def _source(concept: str, speaker: Speaker) -> list[str]:
    several = speaker.given or speaker.open
    given = f"attributes = {toml_of(several)}"
    if len(several) == 1 and not speaker.open:
        given = f"attribute = {toml_of(several[0])}"
    if speaker.open:
        left = ", ".join(speaker.open)
        given = f"{given}  {comment(f'{UNSURE} only when they are settled: {left}')}"
    name = toml_of(speaker.interpretation)
    lines = [f"concept = {toml_of(concept)}", given, f"interpretation = {name}"]
    return [header("sources", speaker.name), *lines]
