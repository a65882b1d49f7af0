"""Interpretations spread by gossip: a node offers those in force and accepts later ones from nodes
that its site names, checked like any change. [ME-12, EN-14]

Interpretations of the node's own files are never replaced. If several nodes changed a name, the
later change wins everywhere (`ensemble/text_sharing.py`). Removals are not spread. A text is a
change in JSON, as the HTTP API accepts it; equal interpretations give equal texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import InvalidInput, Problem, RapportError
from rapport.core.knowledge import Knowledge
from rapport.ensemble.text_sharing import (
    MOST_OFFERS,
    PAGE_MS,
    Capacity,
    Offer,
    SharedTexts,
    Sharing,
    digest_of,
    newer_of,
    page,
    parse_shared,
)
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.mediation.interpretations.change_log import LoggedChange, change_target
from rapport.mediation.interpretations.change_requests import (
    ChangeRequest,
    DeclareFields,
    read_fields_declaration,
    request_from_json,
)
from rapport.mediation.interpretations.change_state import ChangeOutcome, InterpretationState
from rapport.mediation.interpretations.model import CANONICAL
from rapport.mediation.interpretations.type_changes import Declare
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.node.ensemble_ties import KnowledgeQueue
from rapport.site.ensemble import SharingSettings
from rapport.store.base import Put, RecordStore

History = Sequence[tuple[LoggedChange, ChangeOutcome]]


class InterpretationTexts(msgspec.Struct, frozen=True):
    """What a node has."""

    texts: dict[str, tuple[str, str]]
    """By name the stamp and the text."""
    in_files: frozenset[str]
    """Names that the site's files declare, sound or not."""


def interpretation_texts(
    standing: InterpretationState, history: History, tables: Mapping[str, dict[str, Any]]
) -> InterpretationTexts:
    """Everything in force but the canonical model. `tables`: the fields form of the site's file;
    such an interpretation in another file has no text and is not shared.
    """
    in_force, files = standing.in_force, standing.files
    found: dict[str, ChangeRequest] = {}
    for name in in_force.typed.names:
        if name != CANONICAL:
            own = {name: in_force.formats[name]} if name in in_force.formats else {}
            found[name] = ChangeRequest(changes=(Declare(in_force.typed.named(name)),), formats=own)
    for name, form in in_force.fields.items():
        for said in _declarations_of(name, history, tables):
            read, _problems = read_fields_declaration(said)
            if read is not None and read.meaning() == form.meaning():
                found[name] = ChangeRequest(changes=(said,))
                break
    texts = {name: (in_force.stamps[name], text_of(wanted)) for name, wanted in found.items()}
    return InterpretationTexts(texts, frozenset((*files.typed, *files.fields, *files.unread)))


def text_of(wanted: ChangeRequest) -> str:
    """The change as it reads after it was read: a number that was written as 5 may then be 5.0."""
    written = msgspec.json.encode(wanted, order="deterministic")
    again = msgspec.json.decode(written, type=ChangeRequest)
    return msgspec.json.encode(again, order="deterministic").decode()


def change_request(name: str, text: str) -> ChangeRequest:
    """The change request in a text; raises InvalidInput unless it is about that name alone."""
    wanted = request_from_json(text.encode())
    if [change_target(change) for change in wanted.changes] != [name]:
        raise InvalidInput(
            f"what is offered as {name[:60]!r} is about something else",
            code="interpretation.not_as_offered",
        )
    return wanted


def last_change(name: str, history: History) -> LoggedChange | None:
    """The last change of a name; None when a file declares it, or nothing does."""
    for kept, outcome in reversed(history):
        about = [change_target(change) for change in kept.changed.changes]
        if outcome.state == "in force" and name in about:
            return kept
    return None


def _declarations_of(
    name: str, history: History, tables: Mapping[str, dict[str, Any]]
) -> Iterable[DeclareFields]:
    """Declarations of the fields form that may be the one in force, the last first."""
    for kept, outcome in reversed(history):
        for change in reversed(kept.changed.changes if outcome.state == "in force" else ()):
            if isinstance(change, DeclareFields) and change.name == name:
                yield change
    if name in tables:
        yield DeclareFields(name, tables[name])


_TABLE = "ensemble.interpretations"
_BY = "gossip of "
"""Prefix of the author of an accepted change, followed by its origin node."""
_MOST_KNOWN = 10_000
_AHEAD_MS = 60_000
"""So far a clock elsewhere may be ahead."""
_LOOK_MS = 5_000
"""Also without new offers: an offer from the future becomes valid some time."""

_log = get_logger(__name__)


class SharedInterpretation(msgspec.Struct, frozen=True, kw_only=True):
    """An interpretation that is shared, or was refused, for people."""

    name: str
    state: Literal["in force", "wanted", "refused"]
    origin: str
    """The node where it arose."""
    version: str = ""
    """Its stamp: here when it is in force, else at the node that offers it."""
    since_ms: int = 0
    problems: tuple[Problem, ...] = ()


class _Refusal(msgspec.Struct, frozen=True):
    offer: Offer
    problems: tuple[Problem, ...]
    changes: int
    """How many changes there had been here."""


class SharedInterpretations:
    """Puts the node's interpretations on its shelf and takes others'. Belongs to one event loop."""

    def __init__(
        self,
        declared: SharingSettings,
        node: str,
        updating: InterpretationUpdater,
        channels: LoggedChannels,
        clock: Clock,
        assign: Callable[[Mapping[str, Any]], None],
        tables: Callable[[], Mapping[str, dict[str, Any]]],
        rooms: Capacity,
    ) -> None:
        """`assign` sets fields of the node's shelf, which has these `rooms`; `tables`: what the
        site's file says of interpretations of the fields form.
        """
        self._declared, self._node, self._updating = declared, node, updating
        self._channels, self._clock, self._assign = channels, clock, assign
        self._tables, self._rooms = tables, rooms
        self.inbox = KnowledgeQueue(1_000)
        self._changed = asyncio.Event()
        self._shelves: dict[str, SharedTexts] = {}
        """The last offers of each accepted node."""
        self._known: dict[str, Offer] = {}
        """On record: also what was removed here, which is not taken again unless it is later."""
        self._own: dict[str, Offer] = {}
        """In force."""
        self._in_files: frozenset[str] = frozenset()
        self._wanted: dict[str, Offer] = {}
        self._refused: dict[str, _Refusal] = {}
        self._changes = 0
        updating.on_activated.append(self._note_change)

    def put(self, knowledge: Knowledge) -> None:
        """Hears of a version; whether it is a shelf of a node that is accepted is looked at here.
        A node speaks of its own shelf only.
        """
        is_shelf = Sharing.__name__ in knowledge.roles
        accepted = knowledge.node in self._declared.accept
        if is_shelf and accepted and knowledge.component == shelf_id(knowledge.node):
            self.inbox.put(knowledge)

    async def run(self) -> None:
        self._known = await self._channels.look(_kept)
        await self._look_at_own()
        while True:
            self._changed.clear()
            self._take_in()
            await self._take_over()
            await first_of(self.inbox.wait(), self._changed.wait(), self._clock.sleep(_LOOK_MS))
            await self._look_at_own()

    def listed(self) -> list[SharedInterpretation]:
        """All that is shared here, wanted or refused."""
        found = [_shown(one, "in force") for one in self._own.values()]
        found += [_shown(one, "wanted") for one in self._wanted.values()]
        found += [_shown(one.offer, "refused", one.problems) for one in self._refused.values()]
        return sorted(found, key=lambda one: (one.name, one.state))

    # --- what this node has ---

    async def _look_at_own(self) -> None:
        """Offers the interpretations in force now, as many as fit at a time."""
        found = await self._in_texts()
        self._in_files = found.in_files
        digests = {name: digest_of(text) for name, (_version, text) in found.texts.items()}
        is_news = any(self._is_news(name, digest) for name, digest in digests.items())
        history = self._updating.history() if is_news else ()
        own = {
            name: self._offer(name, digests[name], version, history)
            for name, (version, _text) in sorted(found.texts.items())
        }
        texts = {
            digests[name]: text
            for name, (_version, text) in found.texts.items()
            if len(text.encode()) <= self._rooms.texts
        }
        await self._keep(own.values())
        self._own = own
        if self._declared.share:
            offers = [one for one in own.values() if one.digest in texts]
            offers = page(offers, self._rooms.offers, MOST_OFFERS, self._turn())
            chosen = {one.digest: texts[one.digest] for one in offers}
            self._assign({"offers": offers, "texts": chosen})

    def _turn(self) -> int:
        return self._clock.now_ms() // PAGE_MS

    async def _in_texts(self) -> InterpretationTexts:
        history, tables = self._updating.history(), self._tables()
        return await self._updating.inspect(lambda now: interpretation_texts(now, history, tables))

    def _offer(self, name: str, digest: str, version: str, history: History) -> Offer:
        """Known since before, or changed: when, the log says, as it may have been long before this
        node began to share; or now, by a file.
        """
        known = self._known.get(name)
        if known is not None and not self._is_news(name, digest):
            return msgspec.structs.replace(known, version=version)
        change = last_change(name, history) if name not in self._in_files else None
        since_ms = change.time if change is not None else self._clock.now_ms()
        since_ms = max(since_ms, known.since_ms + 1 if known is not None else 0)
        return Offer(name, digest, since_ms, _origin(change, self._node), version)

    def _is_news(self, name: str, digest: str) -> bool:
        known = self._known.get(name)
        return known is None or known.digest != digest

    async def _keep(self, offers: Iterable[Offer]) -> None:
        news = {one.name: one for one in offers if self._known.get(one.name) != one}
        if news:
            encode = msgspec.msgpack.encode
            await self._channels.apply(
                [Put(_TABLE, one.name, encode(one)) for one in news.values()]
            )
            self._known |= news

    # --- what others have ---

    def _take_in(self) -> None:
        for knowledge in self.inbox.take_all():
            try:
                self._shelves[knowledge.node] = parse_shared(knowledge.values)
            except InvalidInput as error:
                _log.warning("shelf cannot be read", node=knowledge.node, reason=error.message)

    async def _take_over(self) -> None:
        """Applies later offers whose texts arrived; requests the texts of the others."""
        offers = [offer for shelf in self._shelves.values() for offer in shelf.offers]
        before_ms = self._clock.now_ms() + _AHEAD_MS
        newer = newer_of(offers, self._known, before_ms=before_ms)
        texts = {
            digest: text for one in self._shelves.values() for digest, text in one.told.items()
        }
        self._wanted = {}
        self._refused = {
            name: chosen
            for name, chosen in self._refused.items()
            if newer.get(name) == chosen.offer
        }
        for name, offer in newer.items():
            if name in self._in_files:
                self._refused[name] = _Refusal(offer, (_declared_by_file(name),), self._changes)
            elif self._was_refused(offer):
                continue
            elif offer.digest in texts:
                await self._change(offer, texts[offer.digest])
            else:
                self._wanted[name] = offer
        digests = sorted(one.digest for one in self._wanted.values())
        wanted = page(digests, self._rooms.wanted, len(digests), self._turn())
        self._assign({"wanted": wanted})

    async def _change(self, offer: Offer, text: str) -> None:
        """Makes the change, or notes why it is refused."""
        try:
            wanted = change_request(offer.name, text)
            await self._updating.change(lambda _: wanted, by=_BY + offer.origin)
        except RapportError as error:
            if offer.name not in self._refused:
                reason = {"name": offer.name, "origin": offer.origin, "reason": error.message}
                _log.warning("interpretation refused", **reason)
            problems = tuple(error.problems_found())
            self._refused[offer.name] = _Refusal(offer, problems, self._changes)
            return
        self._refused.pop(offer.name, None)
        # From here on it is in force as that of its origin, with the name it has here.
        now = (await self._in_texts()).texts.get(offer.name)
        await self._keep([offer if now is None else _as_here(offer, *now)])
        _log.info("interpretation taken over", name=offer.name, origin=offer.origin)

    def _was_refused(self, offer: Offer) -> bool:
        """Whether it is known not to fit the interpretations in force."""
        known = self._refused.get(offer.name)
        return known is not None and known.offer == offer and known.changes == self._changes

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()


def _origin(change: LoggedChange | None, node: str) -> str:
    """The origin node of a change, also after a crash while accepting it."""
    by = change.changed.by if change is not None else ""
    return by.removeprefix(_BY) if by.startswith(_BY) else node


def _as_here(offer: Offer, version: str, text: str) -> Offer:
    return msgspec.structs.replace(offer, version=version, digest=digest_of(text))


def _shown(
    offer: Offer, state: Literal["in force", "wanted", "refused"], why: tuple[Problem, ...] = ()
) -> SharedInterpretation:
    return SharedInterpretation(
        name=offer.name,
        state=state,
        origin=offer.origin,
        version=offer.version,
        since_ms=offer.since_ms,
        problems=why,
    )


def _declared_by_file(name: str) -> Problem:
    return Problem(
        code="interpretation.in_file",
        message=f"the site's own files declare {name!r}, others do not change it",
        hint="take it out of the files if that of the other node is meant",
        severity="warning",
    )


def _kept(records: RecordStore) -> dict[str, Offer]:
    found = records.find(_TABLE, limit=_MOST_KNOWN)
    return {name: msgspec.msgpack.decode(value, type=Offer) for name, value in found}


def shelf_id(node: str) -> str:
    """The component that shares a node's interpretations."""
    return f"shelf of {node}"[:200]
