"""Versions of interpretations on record: what gave an old event its meaning. [ME-12]

Each version is an event of the channel `interpretations` whose id is its stamp, so it is on record
once. It holds what the interpretation itself says and the stamps of what it stands on. A stamp is
checked against the content before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import Corrupt, UnknownName
from rapport.core.event import Event, make_event
from rapport.core.ids import content_id
from rapport.mediation.changing.keeping import CHANNEL, VERSION
from rapport.mediation.in_force import InForce, stamp_from
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.model.replacement import Replacement

_MOST_ABOVE = 1_000
"""Versions that one may stand on; more are no version of ours."""


class Version(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of an interpretation."""

    name: str
    form: Literal["typed", "fields"]
    said: msgspec.Raw
    """The interpretation as JSON, kept as it was written: a number must not look otherwise when its
    stamp is checked.
    """
    parent: str = ""
    """Stamp of the version that it stands on; empty for root and for the fields form."""
    format: FormatChoice = FormatChoice()
    later: tuple[str, ...] = ()
    """Stamps of root in newer versions, through which its events go on."""
    replacement: Replacement | None = None
    """Of root: how this version came of the one before."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A version with all that it stands on, root first."""

    stamp: str
    time: int
    """When it was put on record."""
    version: Version
    above: tuple[Version, ...] = ()


_READ = msgspec.json.Decoder(Version)


def version_events(in_force: InForce, known: Mapping[str, object], time_ms: int) -> Iterator[Event]:
    """An event for each version in force that is not `known`, parents first."""
    roots = _root_stamps(in_force)
    told = set(known)
    for stamp, version in _versions(in_force, roots):
        if stamp not in told:
            told.add(stamp)
            yield make_event(
                source=CHANNEL,
                id=stamp,
                type=VERSION,
                subject=f"interpretation/{version.name}",
                time=time_ms,
                data=version,
            )


async def recorded(channels: Channels, stamp: str) -> Recorded:
    """A version by its stamp, with what it stands on; raises UnknownName, or Corrupt when what is
    on record does not give the stamp.
    """
    version, time = await _one(channels, stamp)
    if version.form == "fields":
        if _stamp_of_fields(version.name, bytes(version.said)) != stamp:
            raise _false(stamp)
        return Recorded(stamp=stamp, time=time, version=version)
    above: list[Version] = []
    parent = version.parent
    while parent:
        if len(above) >= _MOST_ABOVE:
            raise _false(stamp)
        above.append((await _one(channels, parent))[0])
        parent = above[-1].parent
    later = [(await _one(channels, each))[0] for each in version.later]
    chain = [each.said for each in (*reversed(above), version)]
    if stamp_from(version.name, chain, [each.said for each in later], version.format) != stamp:
        raise _false(stamp)
    return Recorded(stamp=stamp, time=time, version=version, above=tuple(reversed(above)))


def _versions(in_force: InForce, roots: list[str]) -> Iterator[tuple[str, Version]]:
    typed = in_force.typed
    # Nobody speaks of root as long as nothing stands on it.
    for number, root in enumerate(typed.roots if typed.held else ()):
        replacement = typed.replacements[number - 1] if number else None
        yield (
            roots[number],
            Version(name=ROOT, form="typed", said=_raw(root), replacement=replacement),
        )
    for name in typed.descendants(ROOT):
        held = typed.held[name]
        number = held.root_version
        parent = held.interpretation.parent
        yield (
            in_force.stamps[name],
            Version(
                name=name,
                form="typed",
                said=_raw(held.interpretation),
                parent=roots[number] if parent == ROOT else in_force.stamps[parent],
                format=in_force.format_of(name),
                later=tuple(roots[number + 1 :]),
            ),
        )
    for name, form in in_force.fields.items():
        yield in_force.stamps[name], Version(name=name, form="fields", said=_raw(form.meaning()))


def _root_stamps(in_force: InForce) -> list[str]:
    return [stamp_from(ROOT, (root,), ()) for root in in_force.typed.roots]


def _raw(form: TypedForm | FieldsForm) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(form))


def _stamp_of_fields(name: str, raw: bytes) -> str:
    return f"{name}@{content_id(raw.decode())[:12]}"


async def _one(channels: Channels, stamp: str) -> tuple[Version, int]:
    for channel, stored in await channels.find_event(stamp):
        if channel == CHANNEL and stored.event.type == VERSION:
            try:
                return _READ.decode(stored.event.data), stored.event.time
            except (msgspec.MsgspecError, RecursionError):
                raise _false(stamp) from None
    raise UnknownName("version of an interpretation", stamp, code="interpretation.unknown")


def _false(stamp: str) -> Corrupt:
    message = f"what is on record as {stamp} is something else"
    return Corrupt(message, code="interpretation.bad_version")
