"""The evidence of a situation in words: each atom in a line, and what a quantifier counts below it.
[SI-9, SI-12]
"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.core.detection import NamedValue
from rapport.core.times import format_time
from rapport.policy.explain.answer import ConditionNode
from rapport.policy.explain.situation_evidence import AtomEvidence, SituationEvidence
from rapport.policy.situations.current_states import AtomState

_SHOWN_READINGS = 10


def evidence_lines(evidence: SituationEvidence) -> Iterator[str]:
    """Each atom with its value, since when and distance, and the readings of the aggregates."""
    for each in evidence.atoms:
        yield f"{atom_text(each.atom)}{_since(each, evidence)}"
        yield from _counted_lines(each.atom, "  ")
    for one in evidence.aggregates:
        ids = ", ".join(id for _time, id in one.readings[-_SHOWN_READINGS:])
        yield f"{one.aggregate}: {one.count} readings" + (f", newest {ids}" if ids else "")


def evidence_nodes(evidence: SituationEvidence) -> tuple[ConditionNode, ...]:
    """The atoms as parts of a condition."""
    return tuple(
        _node(each.atom, _since(each, evidence).removeprefix(", ")) for each in evidence.atoms
    )


def atom_text(atom: AtomState) -> str:
    """`temperature of F > -15 is true: -14.2 degC, 0.8 K above`."""
    facts = ", ".join(_facts(atom))
    return f"{atom.text} is {atom.truth}" + (f": {facts}" if facts else "")


def _facts(atom: AtomState) -> Iterator[str]:
    values = atom.values
    if atom.count is not None:
        ids = [one.id for one in atom.instances]
        more = ["..."] if len(ids) < atom.count else []
        yield f"{atom.count} counted" + (f" ({', '.join(ids + more)})" if ids else "")
        values = {name: one for name, one in values.items() if one.value is None}
    elif atom.truth == "unknown" and len(values) == 1:
        values = {}  # that the value is unknown is what the line says
    for name, value in values.items():
        yield _value(name, value, alone=len(values) == 1 and atom.count is None)
    if atom.distance is not None:
        side = "above" if atom.distance >= 0 else "below"
        yield f"{f'{abs(atom.distance):.6g} {atom.unit}'.rstrip()} {side}"


def _value(name: str, value: NamedValue, *, alone: bool) -> str:
    known = value.value
    shown = f"{known:.6g}" if isinstance(known, float) else known
    text = "unknown" if known is None else f"{shown} {value.unit}".rstrip()
    return text if alone else f"{name} {text}"


def _since(each: AtomEvidence, evidence: SituationEvidence) -> str:
    if each.since is not None:
        return f", since {format_time(each.since)}"
    if evidence.looked_from is not None:
        return f", since {format_time(evidence.looked_from)} or longer"
    return ""


def _counted_lines(atom: AtomState, indent: str) -> Iterator[str]:
    for one in atom.instances:
        yield f"{indent}{one.id}:"
        for inner in one.atoms:
            yield f"{indent}  {atom_text(inner)}"
            yield from _counted_lines(inner, f"{indent}    ")


def _node(atom: AtomState, since: str = "") -> ConditionNode:
    facts = [*_facts(atom), *([since] if since else [])]
    children = tuple(
        ConditionNode(
            text=one.id, truth="true", children=tuple(_node(inner) for inner in one.atoms)
        )
        for one in atom.instances
    )
    return ConditionNode(
        text=atom.text, truth=atom.truth, because=", ".join(facts), children=children
    )
