"""How the policies of a live query share its buckets, and which readings each bucket needs. Pure.
[PI-5, PO-8]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.codec import encode_block
from rapport.pipeline.history.keys import EVERY, Key, Router, choose_key
from rapport.pipeline.live.bucket import BucketPlan
from rapport.pipeline.live.decoding import Decoded
from rapport.pipeline.live.parcel import HIGH, POSITION, Parcel, pack_rows, running_high
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import Plan

Mask = npt.NDArray[np.bool_]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Of every policy what it is parted by, or the one bucket in which it runs whole."""

    buckets: int
    keys: dict[str, Key]
    homes: dict[str, int]
    reasons: dict[str, str]
    """Why those run whole."""

    def explain(self) -> list[str]:
        """One line for each policy."""
        parted = {
            name: f"{name}: {self.buckets} buckets by {key.alias}"
            for name, key in self.keys.items()
        }
        whole = {
            name: f"{name}: whole, in bucket {home}, because {self.reasons[name]}"
            for name, home in self.homes.items()
        }
        return [line for _, line in sorted((parted | whole).items())]


def share_out(
    plans: Sequence[Plan], pull: PullData, sources: Mapping[str, PushSource], buckets: int
) -> Shares:
    """Parts the plans that have a key; the others are spread over the buckets."""
    keys: dict[str, Key] = {}
    reasons: dict[str, str] = {}
    for plan in plans:
        chosen = choose_key(plan, pull, sources) if buckets > 1 else "there is one bucket only"
        if isinstance(chosen, Key):
            keys[plan.policy] = chosen
        else:
            reasons[plan.policy] = chosen
    homes = {name: number % buckets for number, name in enumerate(sorted(reasons))}
    return Shares(buckets=buckets, keys=keys, homes=homes, reasons=reasons)


def plan_of_bucket(
    number: int,
    plans: Sequence[Plan],
    shares: Shares,
    *,
    lateness_ms: int,
    sources: Mapping[str, PushSource],
    began: int | None,
    after: int,
) -> BucketPlan:
    """What runs in one bucket."""
    own = tuple(one for one in plans if shares.homes.get(one.policy, number) == number)
    return BucketPlan(
        number=number,
        buckets=shares.buckets,
        plans=own,
        keys={one.policy: shares.keys[one.policy] for one in own if one.policy in shares.keys},
        lateness_ms=lateness_ms,
        sources=sources,
        began=began,
        after=after,
    )


class Sharing:
    """Makes parcels: every bucket gets the readings its plans look at, and enough of the rest to
    know what is late. Remembers the identities it has seen.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        shares: Shares,
        pull: PullData,
        sources: Mapping[str, PushSource],
    ) -> None:
        self._shares = shares
        self._router = Router(shares.keys.values(), pull, shares.buckets) if shares.keys else None
        self._streams: list[set[str]] = [set() for _ in range(shares.buckets)]
        self._sources: list[set[str]] = [set() for _ in range(shares.buckets)]
        for plan in plans:
            home = shares.homes.get(plan.policy)
            if home is not None:
                self._streams[home].update(plan.streams())
                self._sources[home].update(watched_sources(plan, sources))

    def parcels(self, decoded: Decoded) -> list[Parcel]:
        """One for every bucket, in their order; none when the rows hold nothing that matters."""
        if not (decoded.last or decoded.beats):
            return []
        rows, latest = _with_places(decoded)
        wanted = self._wanted(decoded.readings)
        others = _others(rows.filter(pa.array(~np.logical_or.reduce(wanted))))
        aside = encode_block(decoded.aside) if decoded.aside else b""
        return [
            Parcel(
                first=decoded.first,
                last=decoded.last,
                latest=latest,
                beats=tuple(decoded.beats),
                readings=pack_rows(rows if own.all() else rows.filter(pa.array(own))),
                # One bucket answers for what nobody looks at.
                others=pack_rows(others) if number == 0 else b"",
                aside=aside if number == 0 else b"",
            )
            for number, own in enumerate(wanted)
        ]

    def _wanted(self, readings: pa.RecordBatch) -> list[Mask]:
        """By bucket which readings it needs."""
        if self._router is None:
            wanted = [np.zeros(len(readings), np.bool_) for _ in range(self._shares.buckets)]
        else:
            places = self._router.buckets(readings)
            wanted = [
                (places == number) | (places == EVERY) for number in range(self._shares.buckets)
            ]
        for number, mask in enumerate(wanted):
            for column, names in (("stream", self._streams), ("source", self._sources)):
                if names[number]:
                    mask |= _is_in(readings.column(column), names[number])
        return wanted


def _is_in(column: pa.Array, names: set[str]) -> Mask:
    found: Mask = pc.is_in(column, pa.array(sorted(names), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found


def _with_places(decoded: Decoded) -> tuple[pa.RecordBatch, int | None]:
    """The readings with their positions and the largest time so far, and the largest of all."""
    readings = decoded.readings
    times = readings.column("time").to_numpy()
    # As live in the node: no reading moves time beyond its arrival.
    high = running_high(times if decoded.received is None else np.minimum(times, decoded.received))
    columns = [pa.array(decoded.positions, pa.int64()), pa.array(high, pa.int64())]
    rows = pa.RecordBatch.from_arrays(
        [*columns, *readings.columns], names=[POSITION, HIGH, *readings.schema.names]
    )
    return rows, int(high[-1]) if len(high) else None


def _others(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([POSITION, HIGH, "time", "id"])
