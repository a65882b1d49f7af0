"""The background thread of a listener: asks, fills the cache, keeps the remote lease alive. [CH-7]

A thin shell: what to do is decided by `Listening`, what an answer means by `SourceDoor`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import msgspec

from rapport.channel.agents.listener_reception import Reception
from rapport.channel.agents.listener_state import Answer, Ask, Expired, Full
from rapport.channel.agents.window import Barred, Failed, Pause, Reason
from rapport.channel.requesting.batch import Request
from rapport.core.event import Gap, clip_gaps
from rapport.kernel.chance import Chance
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

_JOIN_SECONDS = 5.0
_STUMBLE_MS = 1_000

OnGap = Callable[[Gap], None]
"""Receives each stretch of positions that the source could not read, once."""


class Source(Protocol):
    """Whoever answers requests: a door of a node, or a program."""

    token: str

    def request(self, request: Request) -> Answer:
        """Asks; a failure is an answer too."""

    def interrupt(self) -> None:
        """Makes a request under way fail soon; may come from any thread."""

    def hang_up(self) -> None:
        """Lets go of what is held between requests."""

    def say_goodbye(self, token: str) -> None:
        """Ends a session, if the source can be told."""


class Fetcher:
    """Asks one source until it is told to end."""

    def __init__(
        self,
        reception: Reception,
        source: Source,
        opening: Request,
        chance: Chance,
        on_gap: OnGap | None = None,
    ) -> None:
        """`opening` is the request that begins; later ones share its limits and its lease."""
        self._reception, self._source = reception, source
        self._opening, self._chance = opening, chance
        self._on_gap, self._gaps_until = on_gap, 0
        self._thread = threading.Thread(target=self._run, name="rapport-listener", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread; a request under way is broken off."""
        with self._reception.bell:
            self._reception.ended = True
            self._reception.bell.notify_all()
        self._source.interrupt()
        self._thread.join(_JOIN_SECONDS)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._reception.ended:
            try:
                self._step()
            except Exception as error:  # whatever happens here, the place is kept and tried again
                self._stumble(error)
        self._source.hang_up()

    def _step(self) -> None:
        reception = self._reception
        now_ms = reception.now_ms()
        with reception.bell:
            step = reception.state.next_step(now_ms)
        if isinstance(step, Ask):
            self._ask(step, now_ms)
        elif isinstance(step, Pause):
            reception.wait_for_ring((step.until_ms - now_ms) / 1_000, or_until_resumed=True)
        elif isinstance(step, Full) and step.until_ms is not None:
            reception.wait_for_ring(max(step.until_ms - now_ms, 0) / 1_000)
        else:
            reception.wait_for_ring(None)

    def _ask(self, ask: Ask, now_ms: int) -> None:
        reception = self._reception
        with reception.bell:
            number = reception.state.begin(ask, now_ms)
            request = self._as_request(ask)
        answer = self._source.request(request)
        if reception.ended:
            return  # what was broken off says nothing
        _tell(answer, ask)
        reception.note(
            lambda: reception.state.answered(
                number, answer, reception.now_ms(), self._chance.random()
            )
        )
        with reception.bell:
            has_open = bool(reception.state.cache.open_token())
            gaps = clip_gaps(reception.state.gaps, self._gaps_until + 1)
        for gap in gaps:
            self._gaps_until = gap.last
            self._report_gap(gap)
        if not has_open:
            # Progress through what does not match; the rest is kept as it is acknowledged.
            reception.save_if_possible()

    def _report_gap(self, gap: Gap) -> None:
        try:
            if self._on_gap is not None:
                self._on_gap(gap)
                return
        except Exception as error:  # it may not keep events from coming
            _log.warning("on_gap failed", why=repr(error))
        _log.warning(
            "the source could not read events", first=gap.first, last=gap.last, reason=gap.reason
        )

    def _as_request(self, ask: Ask) -> Request:
        opening = self._opening
        if not ask.token:
            # Begun again: what is behind us is dropped by its position.
            from_start = opening.from_start or self._reception.state.cache.newest > 0
            return msgspec.structs.replace(opening, wait_ms=ask.wait_ms, from_start=from_start)
        return Request(
            token=ask.token,
            seen=ask.seen,
            wait_ms=ask.wait_ms,
            max_messages=opening.max_messages,
            lease_minutes=0 if ask.ends else opening.lease_minutes,
        )

    def _stumble(self, error: Exception) -> None:
        """A fault of ours: the request counts as failed."""
        if not self._reception.ended:
            _log.error("listening stumbled", why=repr(error), exc_info=error)
        reception = self._reception
        with reception.bell:
            reception.state.stumble(
                Reason("listener.failed", repr(error)), reception.now_ms() + _STUMBLE_MS
            )


def _tell(answer: Answer, ask: Ask) -> None:
    if isinstance(answer, Failed):
        _log.info("request failed", why=answer.reason.message)
    elif isinstance(answer, Barred):
        _log.warning("listening stopped", code=answer.reason.code, why=answer.reason.message)
    elif isinstance(answer, Expired):
        _log.warning("session ran out, begun again", why=answer.reason.message)
    elif answer.batch.gone and not ask.seen:
        _log.warning("events were gone before they came", token=ask.token[:16])
