"""The judge of situations: a slow, literal evaluator of a policy with a `situation` as written.
[SI-1 to SI-8, SI-11]

It follows the exact meaning of situations, rule by rule, over readings and tables that are known
whole. It looks at every instant at which something can change, and shares no code with the compiler
and the operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from rapport.core.detection import Detection, detection_order
from rapport.policy.language.situation_tree import SituationTree
from rapport.policy.ontology import Ontology
from support.judge.holding import Reading
from support.judge.situation_reads import concept_named
from support.judge.situation_truth import Truths
from support.judge.situation_values import Binding, BoundInstance
from support.judge.situation_world import KnownRecord, TableVersion

_Item = TypeVar("_Item")


class OpenSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A situation that has not ended when the record ends."""

    bindings: dict[str, str]
    began: int
    """When it began, or when it was told."""
    unknown_since: int | None = None
    """Since when it is unknown; None if it is not."""


class SituationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy tells of a record."""

    detections: list[Detection]
    """Beginnings and ends, in the order of the fixed output."""
    open: list[OpenSituation]
    """SituationCase and not ended."""
    pending: list[OpenSituation]
    """Open, and to be told later because of `at most once per`."""
    suppressed: int = 0
    """Ended before they could be told."""


class _Episode(msgspec.Struct, frozen=True):
    """From the instant at which a situation begins to that at which it ends."""

    begin: int
    end: int | None


def judge_situation(
    tree: SituationTree,
    ontology: Ontology,
    tables: Sequence[TableVersion],
    readings: Iterable[Reading],
    *,
    start: int | None = None,
    until: int | None = None,
    also_at: Iterable[int] = (),
) -> SituationVerdict:
    """What the policy tells over the readings, late ones left out before (`without_late`).

    Args:
        start: by default the time of the first reading.
        until: time runs on to it; it ends with the last reading otherwise.
        also_at: more instants to look at, which must change nothing.

    Raises InvalidInput for units that SI-3 refuses.
    """
    world = KnownRecord(ontology, tables, readings, start=start, until=until, also_at=also_at)
    if world.end < world.start or not (world.readings or start is not None):
        return SituationVerdict(detections=[], open=[], pending=[])
    evaluation = _Evaluation(tree, world)
    told = [evaluation.told(binding) for binding in evaluation.bindings()]
    return SituationVerdict(
        detections=sorted(_flat(one.detections for one in told), key=detection_order),
        open=_flat(one.open for one in told),
        pending=_flat(one.pending for one in told),
        suppressed=sum(one.suppressed for one in told),
    )


class _Evaluation:
    """One policy over one world."""

    def __init__(self, tree: SituationTree, world: KnownRecord) -> None:
        self.tree, self.world = tree, world
        self.truths = Truths(world)
        instants = self.truths.instants(tree.situation)
        if tree.cleared_by is not None:
            instants |= self.truths.instants(tree.cleared_by)
        self.instants = world.within(instants)

    # Rule 4.

    def bindings(self) -> Iterator[Binding]:
        """Every binding that is ever one."""
        ranges = []
        for definition in self.tree.concepts:
            concept = concept_named(definition.concept, self.world.ontology)
            found = sorted(self.world.identities(concept))
            ranges.append(
                [(definition.alias, BoundInstance(concept, identity)) for identity in found]
            )
        for chosen in itertools.product(*ranges):
            if not any(
                one == other and not self._may_be_same(alias, second)
                for (alias, one), (second, other) in itertools.combinations(chosen, 2)
            ):
                yield dict(chosen)

    def _may_be_same(self, first: str, second: str) -> bool:
        pairs = self.tree.may_be_same
        return (first, second) in pairs or (second, first) in pairs

    def _is_bound(self, binding: Binding, t: int) -> bool:
        """Whether all instances are known at t and satisfy their properties."""
        return all(
            self.truths.may_be(one.concept, one.properties, binding[one.alias].identity, t)
            for one in self.tree.concepts
        )

    # Rule 5.

    def episodes(self, binding: Binding) -> list[_Episode]:
        found: list[_Episode] = []
        begin: int | None = None
        for t in self.instants:
            if begin is None and self._begins(binding, t):
                begin = t
            elif begin is not None and self._ends(binding, t):
                found.append(_Episode(begin, t))
                begin = None
        return found + ([_Episode(begin, None)] if begin is not None else [])

    def _begins(self, binding: Binding, t: int) -> bool:
        if not self._is_bound(binding, t):
            return False
        return self.truths.truth(self.tree.situation, binding, t) is True

    def _ends(self, binding: Binding, t: int) -> bool:
        if not self._is_bound(binding, t):
            return True
        truth = self.truths.truth(self.tree.situation, binding, t)
        if self.tree.cleared_by is None:
            return truth is False
        if truth is True:
            return False
        return self.truths.truth(self.tree.cleared_by, binding, t) is True

    # Rules 6 and 7.

    def told(self, binding: Binding) -> SituationVerdict:
        """What is told of one binding."""
        names = {alias: bound.identity for alias, bound in sorted(binding.items())}
        verdict = SituationVerdict(detections=[], open=[], pending=[])
        last: int | None = None
        for episode in self.episodes(binding):
            told_at = self._told_at(episode, last)
            if told_at is None:
                if episode.end is None:
                    verdict.pending.append(self._open(binding, names, episode.begin))
                else:
                    suppressed = verdict.suppressed + 1
                    verdict = msgspec.structs.replace(verdict, suppressed=suppressed)
                continue
            last = told_at
            causes = sorted(self.truths.causes(self.tree.situation, binding, told_at))
            verdict.detections.append(self._detection(told_at, names, causes))
            if episode.end is None:
                verdict.open.append(self._open(binding, names, told_at))
                continue
            causes = []
            if self.tree.cleared_by is not None:
                causes = sorted(self.truths.causes(self.tree.cleared_by, binding, episode.end))
            verdict.detections.append(self._detection(episode.end, names, causes, told_at))
        return verdict

    def _told_at(self, episode: _Episode, last: int | None) -> int | None:
        """When a beginning is told; None if it is not, or not yet."""
        once_per = self.tree.once_per_ms
        if once_per is None or last is None or episode.begin - last >= once_per:
            return episode.begin
        due = last + once_per
        is_open = episode.end is None or episode.end > due
        return due if is_open and due <= self.world.end else None

    def _open(self, binding: Binding, names: dict[str, str], began: int) -> OpenSituation:
        unknown_since: int | None = None
        for t in reversed(self.instants):
            if self.truths.truth(self.tree.situation, binding, t) is not None:
                break
            unknown_since = t
        return OpenSituation(bindings=names, began=began, unknown_since=unknown_since)

    def _detection(
        self,
        time: int,
        names: dict[str, str],
        causes: list[tuple[int, str]],
        began: int | None = None,
    ) -> Detection:
        return Detection(
            policy=self.tree.name, time=time, bindings=names, causes=tuple(causes), began=began
        )


def _flat(lists: Iterable[list[_Item]]) -> list[_Item]:
    return [item for items in lists for item in items]
