"""Whether the units of a site are those in which its lake holds readings. [LK-2]"""

from __future__ import annotations

from pathlib import Path

from rapport.core.errors import InvalidInput, Problem, RapportError
from rapport.core.schema import PARTS
from rapport.kernel.toml import TomlFile
from rapport.policy.ontology import Ontology
from rapport.units.quantities import converter


def check_lake_units(file: TomlFile, ontology: Ontology, data: Path) -> list[Problem]:
    """A warning for each stream whose table of silver is in another unit than the site's: until
    silver has converted it, a back-test counts in the old one. An error where it cannot be.
    """
    folder = data / "lake" / "silver"
    if not folder.is_dir():
        return []
    from rapport.lake.places import SILVER, Lake  # loads delta-rs, which most sites do without

    lake, problems = Lake.at(data / "lake"), []
    try:
        for stream, kind in sorted(ontology.streams().items()):
            concept, _, attribute = stream.partition(".")
            unit = ontology.units.get(concept, {}).get(attribute, "")
            if not unit or not lake.has(SILVER, stream):
                continue
            table = lake.open(SILVER, stream)
            parts = [part for part in PARTS[kind] if part in table.schema.names]
            written = next((table.unit(part) for part in parts if table.unit(part)), "")
            if written and written != unit:
                problems.append(_other_unit(file, stream, written, unit))
    except RapportError as error:
        problems += error.problems_found()  # the jobs of the lake tell more
    return problems


def _other_unit(file: TomlFile, stream: str, written: str, unit: str) -> Problem:
    concept, _, attribute = stream.partition(".")
    message = f"the lake has {stream} in {written}, the site says {unit}"
    place = ("concepts", concept, "units", attribute)
    try:
        converter(written, unit)
    except InvalidInput:
        return file.problem(
            place,
            "lake.unit_conflict",
            f"{message}: values cannot be converted",
            hint="give the attribute another name, or: rapport pipeline silver --rebuild",
        )
    return file.problem(
        place,
        "lake.unit_changed",
        f"{message}: back-tests and questions count in {written} until silver has converted it",
        hint="rapport pipeline silver converts the table and notes the change",
        severity="warning",
    )
