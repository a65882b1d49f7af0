"""A guess as an interpretation file to edit: every line says why, and what nobody said is left out.
Pure. [ME-10, ME-11, ME-13]

A line whose comment begins with `UNSURE:` wants a look; lines that begin with `# ` are left out
until somebody settles them.
"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.mediation.guessing.fields_form import base_name, fields_form, interpretation_names
from rapport.mediation.guessing.guess import Guess
from rapport.mediation.guessing.matching import Becoming
from rapport.mediation.guessing.pasting import Speaker, into_site, source_name
from rapport.mediation.guessing.toml_text import UNSURE, comment
from rapport.mediation.guessing.typed_form import can_be_typed, typed_form


def propose(guess: Guess, becoming: Becoming, *, name: str, file: str) -> str:
    """The text of the file: the typed form for rows with several columns of numbers, else the
    fields form. `name` is that of the source, `file` that of the data, for people.
    """
    lines = [*_opening(guess, becoming, file), ""]
    if not guess.values:
        lines.append(comment(f"{UNSURE} no column has numbers that could be readings"))
    elif can_be_typed(guess):
        lines += typed_form(guess, becoming, name, file)
        speaker = Speaker(source_name(name), becoming.given, becoming.open, base_name(name))
        lines += into_site(guess, becoming, [speaker])
    else:
        lines += fields_form(guess, name)
        lines += into_site(guess, becoming, _speakers(guess, becoming, name))
    return "\n".join(lines).rstrip() + "\n"


def _speakers(guess: Guess, becoming: Becoming, name: str) -> list[Speaker]:
    """A source for each interpretation of the fields form whose column has an attribute."""
    names = interpretation_names(guess, name)
    base, is_one = source_name(name), len(names) == 1
    return [
        Speaker(base if is_one else f"{base}-{match.attribute}", [match.attribute], [], names[path])
        for path, match in becoming.matches.items()
        if match.fits
    ]


def _opening(guess: Guess, becoming: Becoming, file: str) -> Iterator[str]:
    yield comment(f"Proposed from {guess.rows:,} rows of {file}. Look at each {UNSURE}")
    if not can_be_typed(guess):
        yield "# Keep the interpretations you need; bind a source to each by its name."
    for doubt in guess.doubts:
        yield comment(f"{UNSURE} {doubt}")
    if becoming.known and becoming.concept in _types_said(guess):
        yield comment(
            f"{UNSURE} the data say type {becoming.concept!r}, which is the concept and not the "
            "row: give one of the two another name"
        )
    yield from _left_out(guess)


def _left_out(guess: Guess) -> Iterator[str]:
    for column in guess.columns:
        use = guess.uses[column.name]
        if use == "place":
            yield comment(
                f"{column.name}: a place on earth; points of root are metres in a plan, so it is "
                "left out until a conversion says how"
            )
        elif use == "left out":
            shown = ", ".join(column.examples) or "nothing"
            yield comment(f"left out: {column.name} ({column.kind}): {shown[:100]}")


def _types_said(guess: Guess) -> set[str]:
    """Entities of NGSI say their type."""
    if guess.format != "ngsi":
        return set()
    return {
        str(value)
        for column in guess.columns
        if column.path == ("type",)
        for value in column.values
    }
