"""Names for what a site does not have yet: a concept, and its attributes. Pure. [ME-13]"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from rapport.mediation.guessing.columns import Path
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.toml_text import slug
from rapport.mediation.guessing.words import short_name, words_of

_THINGS = {
    "station": ("station", "estacao", "estacion", "wetterstation", "stationcode", "stationid"),
    "device": ("device", "dev", "sensor", "node", "geraet", "dispositivo", "appareil"),
    "vehicle": ("vehicle", "bus", "car", "veiculo", "vehiculo", "fahrzeug", "vehicule"),
    "meter": ("meter", "medidor", "contador", "zaehler", "compteur"),
    "room": ("room", "sala", "raum", "salle"),
}
"""What a key that is called so names."""
_IDENTITY = "id"
"""Of every concept its identity; an attribute that is declared has another name."""


def concept_name(
    guess: Guess, source: str, taken: Collection[str], is_name: Callable[[str], bool]
) -> str:
    """The thing that the key names, else what the source is called; never one that is taken."""
    said = set(words_of(guess.key.field[-1])) if guess.key else set()
    things = [thing for thing, words in _THINGS.items() if said.intersection(words)]
    # An entity of NGSI says its type itself; a concept of that name would be taken for it.
    types = {
        str(value) for column in guess.columns if _is_type(column.path) for value in column.values
    }
    wanted = [*things, _worded(slug(source), "thing"), "thing"]
    return _free(wanted, {*taken, *types}, is_name)


def attribute_names(
    values: Sequence[ValueGuess], taken: Collection[str], is_name: Callable[[str], bool]
) -> dict[Path, str]:
    """A name for each column, no two alike and none that is taken."""
    found: dict[Path, str] = {}
    for value in values:
        path, unit = value.column.path, value.unit.unit
        name = re.sub(rf"[_\s.-]+{re.escape(unit)}$", "", path[-1]) if unit else path[-1]
        own = _worded(slug(name), "value")
        wanted = [*filter(None, [short_name(name)]), own, f"{own}-value"]
        found[path] = _free(wanted, {_IDENTITY, *taken, *found.values()}, is_name)
    return found


def _is_type(path: Path) -> bool:
    return path == ("type",)


def _worded(name: str, otherwise: str) -> str:
    """Begins with a letter, and no part of it is empty."""
    return name if name[:1].isalpha() else f"{otherwise}-{name}".strip("-")


def _free(wanted: Sequence[str], taken: Collection[str], is_name: Callable[[str], bool]) -> str:
    for name in wanted:
        if name not in taken and is_name(name):
            return name
    number = 2
    while f"{wanted[-1]}-{number}" in taken:
        number += 1
    return f"{wanted[-1]}-{number}"
