"""Which identity a plan can be parted by, and where each reading belongs then. [PI-5, PO-8]

A key is an alias K that every detection binds. What matters to a detection with K = k are the
readings of k and those that may stand for other aliases: events are used up per pair of
identities, states and silences are per identity, `at most once per` is per bindings. So readings
that can only stand for K go to the bucket of their identity, those that may stand for another alias
to every bucket, and a bucket keeps the detections whose K is its own.

A situation binds all its aliases in every line, so each alias with streams may be the key. Its
readings are those of every stream by which its instances become known, whatever their values.
Quantified aliases are others, those of the same concept too. The aliases of a guard need the same
readings besides those of the conditions.

Values of situations and guards last. If tables may change, a reading can matter to an identity that
stands for an alias only later, so their readings are then parted whatever the constraints.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection, Undecided
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import Identities, IdentityFilter
from rapport.policy.operators.plan_shape import plan_shape
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import (
    Constraint,
    LastingTerm,
    Plan,
    PolicyPlan,
    Side,
    SilentTerm,
    TermStep,
    state_atoms,
)
from rapport.policy.situation_plan import BoundAlias, SituationPlan, counted_aliases

EVERY, NOBODY = -1, -2
"""Instead of a bucket: all of them need the reading, or none does."""

Buckets = npt.NDArray[np.int32]
_UNKNOWN = "\0"
"""Stands for all identities that no table knows."""


class Role(msgspec.Struct, frozen=True):
    """Readings of a stream whose identity satisfies the constraints may stand for an alias."""

    stream: str
    constraints: tuple[Constraint, ...] = ()

    @property
    def concept(self) -> str:
        """Whose identities the stream is of."""
        return self.stream.partition(".")[0]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The alias that a plan is parted by. Plain data; `Router` finds the buckets."""

    alias: str
    own: tuple[Role, ...]
    """What may stand for the alias."""
    others: tuple[Role, ...]
    """What may stand for another one."""
    watched: tuple[str, ...] = ()
    """Sources with a period (rule 8): whoever asks for their silence must hear all of them."""
    share: float = 0.0
    """Of the identities of the plan's streams how many have a bucket of their own, 0 to 1."""

    def owns(self, found: Detection | Undecided, bucket: int, buckets: int) -> bool:
        """Whether a detection is to be kept in a bucket."""
        return bucket_of(found.bindings[self.alias], buckets) == bucket


def choose_key(
    plan: PolicyPlan,
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
    *,
    is_live: bool = False,
    kept: str = "",
) -> Key | str:
    """The key by which most readings need one bucket only; the reason when there is none.

    Args:
        is_live: whether tables may change while the plan runs.
        kept: an alias to choose if it can be the key, because state is parted by it.
    """
    if isinstance(plan, SituationPlan):
        roles = _roles_of_bound([*_named(plan.aliases), *_quantified(plan)], is_live)
        bound = {one.alias for one in plan.aliases}
        watched: tuple[str, ...] = ()
    else:
        roles, bound = dict(_roles(plan)), _always_bound(plan)
        for alias, own in _roles_of_bound(_guarded(plan), is_live).items():
            roles.setdefault(alias, []).extend(own)
        watched = watched_sources(plan, sources or {})
    candidates = [alias for alias in roles if alias in bound]
    if kept in candidates:
        return _key(kept, roles, watched, pull)
    if not candidates:
        return "there is no alias with events of its own that every detection names"
    keys = [_key(alias, roles, watched, pull) for alias in sorted(candidates)]
    best = max(keys, key=lambda key: key.share)
    if not best.share:
        others = ", ".join(sorted(alias for alias in roles if alias != best.alias))
        if not others:
            return f"no identity with events can be {best.alias}"
        return f"every event that may stand for {best.alias} may stand for {others} too"
    return best


def joint_share(keys: Sequence[Key], pull: PullData) -> float:
    """Of the identities how many have a bucket of their own when plans with these keys run
    together.
    """
    own = tuple(dict.fromkeys(role for key in keys for role in key.own))
    others = tuple(dict.fromkeys(role for key in keys for role in key.others))
    return _share(own, others, pull)


def bucket_of(identity: str, buckets: int) -> int:
    """The bucket of an identity: the same in every process and every release."""
    return zlib.crc32(identity.encode()) % buckets


class Router:
    """Finds the buckets of readings for plans that run together; every identity is judged once.

    Of several keys a reading goes to every bucket if one of them wants it there; more than a plan
    needs never changes what it finds. Remembers the identities it has seen.
    """

    def __init__(self, keys: Iterable[Key], pull: PullData, buckets: int) -> None:
        keys = list(keys)
        self._buckets = buckets
        self._own = _by_stream(keys, lambda key: key.own)
        self._others = _by_stream(keys, lambda key: key.others)
        self._watched = sorted({name for key in keys for name in key.watched})
        streams = sorted({*self._own, *self._others})
        self._known = {
            stream: Identities(pull.instances(stream.partition(".")[0])) for stream in streams
        }
        self._places: dict[str, Buckets] = dict.fromkeys(streams, np.zeros(0, np.int32))
        self._by_text: dict[str, Buckets] = {}

    def buckets(self, readings: pa.RecordBatch, *, with_watched: bool = True) -> Buckets:
        """The bucket of each reading; those of watched sources go to every one, if not said
        otherwise.
        """
        found: Buckets = np.full(len(readings), NOBODY, np.int32)
        streams = readings.column("stream")
        for stream in self._known:
            mask = pc.equal(streams, stream).to_numpy(zero_copy_only=False)
            if mask.all():
                found = self.of_stream(stream, readings.column("key"))
            elif mask.any():
                found[mask] = self.of_stream(stream, readings.column("key").filter(pa.array(mask)))
        if with_watched and self._watched:
            told = pc.is_in(readings.column("source"), pa.array(self._watched, pa.string()))
            found[told.to_numpy(zero_copy_only=False)] = EVERY
        return found

    def places(self, stream: str, texts: list[str]) -> Buckets | None:
        """The buckets of a growing list of identities; None when no plan reads the stream."""
        if stream not in self._known:
            return None
        seen = self._by_text.get(stream)
        if seen is None or len(seen) < len(texts):
            before = np.zeros(0, np.int32) if seen is None else seen
            codes = self._known[stream].encode_list(texts[len(before) :])
            seen = np.concatenate((before, self._judged(stream)[codes]))
            self._by_text[stream] = seen
        return seen

    def of_stream(self, stream: str, keys: pa.Array) -> Buckets:
        """The buckets of readings of one of the streams, by their keys (text, or a dictionary)."""
        encoded = keys if pa.types.is_dictionary(keys.type) else keys.dictionary_encode()
        codes = self._known[stream].encode_list(encoded.dictionary.to_pylist())
        found: Buckets = self._judged(stream)[codes][encoded.indices.to_numpy()]
        return found

    def _judged(self, stream: str) -> Buckets:
        """Of every identity known by now."""
        identities, before = self._known[stream], self._places[stream]
        if len(before) < len(identities.ids):
            fresh = identities.ids[len(before) :]
            own, others = (
                _suits(fresh, roles.get(stream, ()), identities)
                for roles in (self._own, self._others)
            )
            alone = np.fromiter(
                (bucket_of(name, self._buckets) for name in fresh), np.int32, len(fresh)
            )
            places = np.where(others, EVERY, np.where(own, alone, NOBODY)).astype(np.int32)
            self._places[stream] = np.concatenate((before, places))
        return self._places[stream]


def _key(
    alias: str, roles: Mapping[str, Sequence[Role]], watched: tuple[str, ...], pull: PullData
) -> Key:
    own = tuple(dict.fromkeys(roles[alias]))
    others = tuple(dict.fromkeys(r for name, own in roles.items() if name != alias for r in own))
    share = _share(own, others, pull)
    return Key(alias=alias, own=own, others=others, watched=watched, share=share)


def _share(own: Sequence[Role], others: Sequence[Role], pull: PullData) -> float:
    streams = sorted({role.stream for role in (*own, *others)})
    return sum(_share_alone(stream, own, others, pull) for stream in streams) / len(streams)


def _share_alone(stream: str, own: Sequence[Role], others: Sequence[Role], pull: PullData) -> float:
    """Of the identities that have readings of a stream how many can only be the key."""
    identities = Identities(pull.instances(stream.partition(".")[0]))
    names = [*identities.instances.ids, _UNKNOWN]
    is_own, is_other = (
        _suits(names, [role for role in roles if role.stream == stream], identities)
        for roles in (own, others)
    )
    return float(np.mean(is_own & ~is_other))


def _suits(
    names: list[str], roles: Iterable[Role], identities: Identities
) -> npt.NDArray[np.bool_]:
    """Which identities satisfy the constraints of one of the roles."""
    found = np.zeros(len(names), np.bool_)
    codes = identities.encode_list(names)
    for role in roles:
        side = Side("", role.concept, "", role.constraints, role.stream)
        found |= IdentityFilter(side, identities).allowed()[codes]
    return found


def _by_stream(
    keys: Iterable[Key], roles_of: Callable[[Key], tuple[Role, ...]]
) -> dict[str, tuple[Role, ...]]:
    found: dict[str, dict[Role, None]] = {}
    for key in keys:
        for role in roles_of(key):
            found.setdefault(role.stream, {})[role] = None
    return {stream: tuple(roles) for stream, roles in found.items()}


def _always_bound(plan: Plan) -> set[str]:
    """The aliases that every match binds."""
    ways = [
        {side.alias for term in way.terms for side in _sides(plan.terms[term])}
        for way in plan_shape(plan).combinations
    ]
    return set.intersection(*ways) if ways else set()


NamedAlias = tuple[str, BoundAlias]


def _roles_of_bound(named: Iterable[NamedAlias], is_live: bool) -> dict[str, list[Role]]:
    """What may stand for aliases of a situation or guard."""
    return {
        name: [Role(stream, () if is_live else one.constraints) for stream in one.streams]
        for name, one in named
        if one.streams
    }


def _named(aliases: Iterable[BoundAlias]) -> list[NamedAlias]:
    return [(one.alias, one) for one in aliases]


def _quantified(plan: PolicyPlan) -> list[NamedAlias]:
    """Quantified aliases are numbered: their names may repeat, and none is bound."""
    counted = counted_aliases(plan.conditions())
    return [(f"{one.alias} of quantifier {n}", one) for n, one in enumerate(counted, 1)]


def _guarded(plan: Plan) -> list[NamedAlias]:
    """The aliases of a guard; matches satisfy the constraints of the conditions."""
    return [*_named(guard_aliases(plan)), *_quantified(plan)]


def guard_aliases(plan: Plan) -> list[BoundAlias]:
    """The aliases of a plan's guard, with the constraints that every match satisfies."""
    constraints = {side.alias: side.constraints for side in plan.sides()}
    return [
        msgspec.structs.replace(one, constraints=constraints.get(one.alias, ()))
        for one in plan.guard_aliases
    ]


def _roles(plan: Plan) -> Iterator[tuple[str, list[Role]]]:
    """Every alias that has events in the conditions, with what may stand for it."""
    found: dict[str, list[Role]] = {}
    for term in plan.terms:
        for alias, role in _roles_of(term):
            found.setdefault(alias, []).append(role)
    yield from found.items()


def _roles_of(term: TermStep) -> Iterator[tuple[str, Role]]:
    if isinstance(term, SilentTerm):
        yield from ((term.first.alias, Role(s, term.first.constraints)) for s in term.streams)
    elif isinstance(term, LastingTerm):
        constraints = {side.alias: side.constraints for side in _sides(term)}
        for atom in state_atoms(term.state):
            for side in _sides(atom.term):
                if side.stream is not None:
                    yield side.alias, Role(side.stream, constraints[side.alias])
    else:
        for side in _sides(term):
            if side.stream is not None:
                yield side.alias, Role(side.stream, side.constraints)


def _sides(term: TermStep) -> tuple[Side, Side]:
    return term.first, term.second
