"""Which brokers on a path get a copy of what was found. [CX-6]"""

from __future__ import annotations

from rapport.context.broker.settings import ReplicationSettings
from rapport.core.context_record import ContextRecord
from rapport.kernel.chance import Chance
from rapport.overlay.routing import way_back
from rapport.transport.base import Address


def worth_a_copy(record: ContextRecord, settings: ReplicationSettings, wall_ms: int) -> bool:
    """Whether a record is valid now and for long enough."""
    return (
        settings.kind != "none"
        and record.valid_from <= wall_ms
        and record.valid_until - wall_ms >= settings.least_validity_ms
    )


def choose_marks(brokers: range, settings: ReplicationSettings, chance: Chance) -> tuple[int, ...]:
    """The places on the path, of those in `brokers`, where copies are to be left.

    `random` draws `copies` of them, or as many as there are up to `at_most`; `path` and `cache`
    take all (of the way back, and of all that the question passed); `passive` only the broker
    whose client asked.
    """
    kind = settings.kind
    if not brokers or kind == "none":
        return ()
    if kind == "passive":
        return (1,) if 1 in brokers else ()
    if kind != "random":
        return tuple(brokers)
    number = min(settings.copies or settings.at_most, len(brokers))
    return tuple(brokers) if number == len(brokers) else tuple(chance.sample(brokers, number))


def answer_path(
    trail: tuple[Address, ...], own: Address, settings: ReplicationSettings
) -> tuple[Address, ...]:
    """The way that an answer from here takes: the trail of the question without its detours,
    except when every broker that the question passed is to keep a copy.
    """
    if settings.kind == "cache" or (own not in trail and len(set(trail)) == len(trail)):
        return trail
    return way_back((*trail, own))[:-1]
