"""A policy with a situation, readings and what is told, as one text: for cases worked by hand.
[SI-11]

The text has the sections of a policy without actions, then `readings` and `told`:

    situation
      temperature of S above 30 degC
    readings
      0 e1 temperature of s1 = 31 from hut
      50 e2 temperature of s1 = 30 from hut
    told
      0 S=s1: e1
      50 S=s1 since 0:
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from rapport.core.detection import Detection
from rapport.core.times import parse_time
from rapport.policy.ontology import Ontology
from support.judge.holding import Reading
from support.judge.situation_world import TableVersion
from support.judge.situations import OpenSituation, SituationVerdict
from support.judge.trials import reading_of

_DEFAULT_CONCEPTS = "concepts\n  station S\n"
_ACTIONS = "\nactions\n  look\n"


class SituationCase(Protocol):
    """Tries a policy as written down: what is told must be what stands in the text."""

    def __call__(
        self,
        text: str,
        *,
        tables: Sequence[TableVersion] = ...,
        start: int | None = None,
        until: int | None = None,
        zone: str = "",
    ) -> None: ...


class SituationTrial(msgspec.Struct, frozen=True):
    """The three parts."""

    policy: str
    readings: tuple[Reading, ...]
    told: tuple[str, ...]


def read_situation_trial(text: str, ontology: Ontology) -> SituationTrial:
    """Without the section `concepts` there is `station S`; times are milliseconds or ISO 8601."""
    policy, _, rest = text.lstrip("\n").partition("\nreadings\n")
    readings, _, told = f"\n{rest}".partition("\ntold\n")
    if not policy.startswith("concepts"):
        policy = _DEFAULT_CONCEPTS + policy
    return SituationTrial(
        policy + _ACTIONS,
        tuple(_reading(line, ontology) for line in _lines(readings)),
        tuple(_lines(told)),
    )


def told_lines(verdict: SituationVerdict) -> list[str]:
    """Beginnings and ends in order, then what is open, what is pending, and how many were left
    out.
    """
    lines = [_detection(one) for one in verdict.detections]
    lines += [_left("open", one) for one in verdict.open]
    lines += [_left("pending", one) for one in verdict.pending]
    return lines + ([f"left out: {verdict.suppressed}"] if verdict.suppressed else [])


def _detection(found: Detection) -> str:
    since = "" if found.began is None else f"since {found.began}"
    who = " ".join(part for part in (_names(found.bindings), since) if part)
    return f"{found.time} {who}: {' '.join(id for _, id in found.causes)}".rstrip()


def _left(what: str, found: OpenSituation) -> str:
    unknown = "" if found.unknown_since is None else f", unknown since {found.unknown_since}"
    who = " ".join(part for part in (_names(found.bindings), f"since {found.began}") if part)
    return f"{what} {who}{unknown}"


def _names(bindings: dict[str, str]) -> str:
    return " ".join(f"{alias}={identity}" for alias, identity in sorted(bindings.items()))


def _reading(line: str, ontology: Ontology) -> Reading:
    time, _, rest = line.partition(" ")
    moment = int(time) if time.lstrip("-").isdigit() else parse_time(time)
    return reading_of(f"{moment} {rest}", ontology)


def _lines(text: str) -> Iterable[str]:
    lines = (line.split(" # ")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]
