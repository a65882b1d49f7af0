from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.core.event import Event, StoredEvent
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import Concepts, canonical_model
from rapport.mediation.config import interpretations_from_site
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.formats.catalogue import parse_format, read_values
from rapport.mediation.guessing.concept_match import match_concept
from rapport.mediation.guessing.guess import guess
from rapport.mediation.guessing.proposal import HEADING, propose
from rapport.mediation.guessing.sample import sample_of
from rapport.mediation.interpretations.repository import activate
from rapport.mediation.reader import build_transformer
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.language.lexer import is_name
from rapport.site.interpretations import concepts_of, source_bindings

_INMET_HEAD = """REGIAO:;S
UF:;RS
ESTACAO:;PORTO ALEGRE - JARDIM BOTANICO
CODIGO (WMO):;A801
LATITUDE:;-30,05361111
LONGITUDE:;-51,17472221
ALTITUDE:;41,18
DATA DE FUNDACAO:;22/09/00
"""
_INMET_COLUMNS = (
    "Data;Hora UTC;PRECIPITAÇÃO TOTAL, HORÁRIO (mm);"
    "PRESSAO ATMOSFERICA AO NIVEL DA ESTACAO, HORARIA (mB);RADIACAO GLOBAL (Kj/m²);"
    "TEMPERATURA DO AR - BULBO SECO, HORARIA (°C);UMIDADE RELATIVA DO AR, HORARIA (%);"
    "VENTO, VELOCIDADE HORARIA (m/s);\n"
)


@pytest.fixture
def inmet() -> bytes:
    """A national station's year as INMET writes it: latin-1, semicolons, decimal commas."""
    rows = [
        f"2026/01/{1 + hour // 24:02};{hour % 24:02}00 UTC;0;10{hour % 9:02},4;"
        f"{'-9999' if hour % 24 < 10 else f'{412 + hour},7'};2{hour % 10},{hour % 10};"
        f"{60 + hour % 30};1,{hour % 10};\n"
        for hour in range(60)
    ]
    return (_INMET_HEAD + _INMET_COLUMNS + "".join(rows)).encode("latin-1")


@pytest.fixture
def firms() -> bytes:
    """Hotspots of a satellite as FIRMS writes them: kelvin, hours without leading zeros."""
    rows = [
        f"-30.{number:04},-51.{number:04},3{10 + number % 20}.{number % 10},1.0,1.1,"
        f"2026-01-{1 + number % 9:02},{number * 37 % 60 + 100 * (number % 24)},Terra,MODIS,"
        f"{50 + number % 40},6.1NRT,29{number % 9}.1,{5 + number % 7}.3,D\n"
        for number in range(50)
    ]
    heading = (
        "latitude,longitude,brightness,scan,track,acq_date,acq_time,satellite,instrument,"
        "confidence,version,bright_t31,frp,daynight\n"
    )
    return (heading + "".join(rows)).encode()


@pytest.fixture
def ngsi() -> bytes:
    """City stations as JSON lines of NGSI entities, without units."""
    lines = [
        f'{{"id":"station-{number % 3}","type":"WeatherObserved",'
        f'"dateObserved":{{"type":"DateTime","value":"2026-03-02T{number % 24:02}:00:00Z"}},'
        f'"temperature":{{"value":{20 + number / 10}}},'
        f'"relativeHumidity":{{"value":0.{15 + number}}},"windSpeed":{{"value":2}}}}\n'
        for number in range(30)
    ]
    return "".join(lines).encode()


@pytest.fixture
def senml() -> bytes:
    """A pack of one device."""
    return (
        b'[{"bn":"urn:dev:ow:10e2073a01080063:","bt":1.772442e9,"bu":"Cel","n":"temp","v":23.5},\n'
        b' {"n":"humidity","u":"%RH","v":40},\n {"n":"temp","t":60,"v":23.6},\n'
        b' {"n":"humidity","u":"%RH","t":60,"v":41}]'
    )


class Site:
    """A site that a proposal is put into: what it has before, the tables to paste, the file."""

    def __init__(self, directory: Path, before: str = "") -> None:
        self.directory, self.before = directory, before
        self.problems: list[str] = []

    @property
    def concepts(self) -> Concepts:
        ontology, _ = ontology_from_site(TomlFile.parse(self.before.encode(), name="site.toml"))
        return concepts_of(ontology)

    def proposal(self, raw: bytes, name: str) -> str:
        found = guess(sample_of(raw))
        becoming = match_concept(found, self.concepts, name=name, is_name=is_name)
        return propose(found, becoming, name=name, file=f"{name}.csv")

    def load(self, text: str) -> Any:
        """The site with the proposal and what it asks to be pasted; all faults in `problems`."""
        proposed, _, pasted = text.partition(f"# {HEADING}")
        tables = re.sub("^# ?", "", pasted, flags=re.MULTILINE)
        (self.directory / "feed.interpretation.toml").write_text(proposed, encoding="utf-8")
        files = '[interpretations]\nfiles = ["*.interpretation.toml"]\n'
        (self.directory / "site.toml").write_text(f"{self.before}\n{files}\n{tables}")
        file = TomlFile.load(self.directory / "site.toml")
        ontology, problems = ontology_from_site(file)
        concepts = concepts_of(ontology)
        root, _ = canonical_model(concepts)
        fields, declared = interpretations_from_site(
            file, self.directory, known=[each.name for each in root.types]
        )
        typed = complete_declarations(declared, root)
        in_force, last = activate(
            fields, typed.interpretations.values(), concepts=concepts, formats=typed.formats
        )
        results = [
            *problems,
            *typed.problems,
            *(each for _name, faults in last for each in faults),
        ]
        self.problems = [each.as_text() for each in results if each.severity == "error"]
        return in_force, source_bindings(ontology, file)

    def readings(self, text: str, raw: bytes) -> dict[str, list[tuple[int, str, float]]]:
        """What the rows of the file become, by stream: time, key, value; also what is rejected."""
        in_force, bindings = self.load(text)
        assert self.problems == []
        found: dict[str, list[tuple[int, str, float]]] = {}
        for source, binding in bindings.items():
            choice = in_force.format_of(binding.interpretation)
            name, options = parse_format({"name": choice.name, **choice.options})
            events = [
                StoredEvent(
                    number, 0, Event(source, f"{number}", f"{source}.raw", "", 7, _encoded(value))
                )
                for number, value in enumerate(read_values(io.BytesIO(raw), name, options), start=1)
            ]
            readings, rejections = build_transformer(binding, in_force).apply_many(events)
            for each in readings:
                result = each.payload()
                found.setdefault(each.type, []).append(
                    (each.time, result["key"], result["value"][0])
                )
            for each in rejections:
                found.setdefault(each.code, []).append((0, "", 0.0))
        return found


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


@pytest.fixture
def new_site(tmp_path: Path) -> Callable[[str], Site]:
    """Makes a site with what its file says before anything is proposed."""
    return lambda before="": Site(tmp_path, before)
