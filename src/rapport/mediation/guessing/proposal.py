"""A guess as an interpretation file to edit: every line says why, and what nobody said is left out.
Pure. [ME-10, ME-11, ME-13]

A line whose comment begins with `UNSURE:` wants a look; lines that begin with `# ` are left out
until somebody settles them.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from rapport.mediation.guessing.columns import Path
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.sample import TEXT_FORMATS

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_BRACKETED = re.compile(r"[(\[].*")
_LONGEST = 40
UNSURE = "UNSURE:"
_SEE_ABOVE = ("see the top of the file",)


def propose(guess: Guess, *, name: str, file: str) -> str:
    """The text of the file: one interpretation for each column of numbers, since each reading is of
    one attribute.
    """
    lines = [*_opening(guess, file), ""]
    names = _names(guess, name)
    if not guess.values:
        lines.append(f"# {UNSURE} no column has numbers that could be readings")
    for value, each in zip(guess.values, names, strict=True):
        lines += [*_interpretation(guess, value, each), ""]
    return "\n".join(lines).rstrip() + "\n"


def toml_of(value: Any) -> str:
    """A value as TOML on one line.

    >>> toml_of({"name": "csv", "metadata": 8, "hora utc": ["a"]})
    '{ name = "csv", metadata = 8, "hora utc" = ["a"] }'
    """
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml_key(key)} = {toml_of(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_of(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def slug(text: str) -> str:
    """A name out of any text: small letters, digits and dashes.

    >>> slug("TEMPERATURA DO AR - BULBO SECO, HORÁRIA (°C)")
    'temperatura-do-ar-bulbo-seco-horaria'
    """
    plain = unicodedata.normalize("NFKD", _BRACKETED.sub("", text) or text)
    ascii_only = plain.encode("ascii", "ignore").decode().lower()
    return _NOT_IN_NAMES.sub("-", ascii_only)[:_LONGEST].strip("-")


def _opening(guess: Guess, file: str) -> Iterator[str]:
    yield from _comment(f"Proposed from {guess.rows:,} rows of {file}. Look at each {UNSURE}")
    yield "# Keep the interpretations you need; bind a source to each by its name."
    for doubt in guess.doubts:
        yield from _comment(f"{UNSURE} {doubt}")
    for column in guess.columns:
        use = guess.uses[column.name]
        if use == "place":
            yield from _comment(
                f"{column.name}: a place on earth; points of root are metres in a plan, so it is "
                "left out until a conversion says how"
            )
        elif use == "left out":
            shown = ", ".join(column.examples) or "nothing"
            yield from _comment(f"left out: {column.name} ({column.kind}): {shown[:100]}")


def _interpretation(guess: Guess, value: ValueGuess, name: str) -> Iterator[str]:
    yield f"[interpretations.{_toml_key(name)}]"
    yield f"about = {toml_of(value.column.name)}"
    yield _line("format", _format(guess), guess.because, _SEE_ABOVE if guess.doubts else ())
    yield _time(guess)
    yield _identity(guess)
    yield from _value(guess, value)


def _format(guess: Guess) -> Any:
    return {"name": guess.format, **guess.options} if guess.options else guess.format


def _time(guess: Guess) -> str:
    if guess.timed:
        return "# time: the data say it in the way of the format"
    if guess.time is None:
        return f"# {UNSURE} no column looks like a time; without one the time of arrival counts"
    rule: dict[str, Any] = {"field": _field(guess.time.field), "format": guess.time.format}
    if guess.time.zone:
        rule["zone"] = guess.time.zone
    return _line("time", rule, guess.time.because, guess.time.doubts)


def _identity(guess: Guess) -> str:
    if guess.key is None:
        return f'# {UNSURE} whom is it about? identity = {{ field = "..." }}'
    return _line(
        "identity", {"field": _field(guess.key.field)}, guess.key.because, guess.key.doubts
    )


def _value(guess: Guess, value: ValueGuess) -> Iterator[str]:
    column, unit = value.column, value.unit
    rule: dict[str, Any] = {"field": _field(column.path)}
    if unit.unit:
        rule["unit"] = unit.unit
    if column.is_text and guess.format not in TEXT_FORMATS:
        rule["decimal"] = guess.marks.decimal
    because = f"{column.low:g} to {column.high:g}"
    missing = column.rows - column.filled
    if missing:
        because += f", {missing} of {column.rows} rows without"
    if unit.sure:
        yield _line("value", rule, f"{because}; {unit.because}", ())
    else:
        yield _line(
            "value",
            rule,
            because,
            (f"{unit.because}; readings are held until the unit is declared",),
        )


def _line(key: str, value: Any, because: str, doubts: tuple[str, ...]) -> str:
    text = f"{UNSURE} {'; '.join(doubts)} ({because})" if doubts else f"sure: {because}"
    return f"{key} = {toml_of(value)}  # {_clean(text)}"


def _comment(text: str) -> Iterator[str]:
    yield f"# {_clean(text)}"


def _clean(text: str) -> str:
    """No sign that would end the comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _field(path: Path) -> Any:
    return path[0] if len(path) == 1 else list(path)


def _names(guess: Guess, name: str) -> list[str]:
    """One name for each value, no two alike."""
    base = slug(name) or "source"
    found: list[str] = []
    for number, value in enumerate(guess.values, start=1):
        wanted = f"{base}/{slug('-'.join(value.column.path)) or f'column-{number}'}"
        found.append(wanted if wanted not in found else f"{wanted}-{number}")
    return found


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) else toml_of(key)
