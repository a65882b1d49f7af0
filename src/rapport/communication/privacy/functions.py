"""Privacy decided by Python: functions of the site's own files and plug-ins `rapport.privacy`.
[CO-9, UX-9]

They run in a worker process with a deadline. One that is missing, raises, hangs, dies or answers
with what means nothing refuses: privacy fails closed, and the log says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from rapport.communication.privacy.hours import local_time
from rapport.communication.privacy.rules import (
    Allowed,
    Hold,
    PrivacyFacts,
    PrivacyRule,
    Refuse,
    Verdict,
)
from rapport.communication.templates import clean
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.kernel.worker import WorkerReply
from rapport.kernel.worker_client import PAUSE_MS, CallFailed, WorkerFunctions

DEADLINE_MS = 500
"""How long a function may think."""
_LONGEST_HOLD_MS = 366 * 86_400_000
_LONGEST_REASON = 200
_UNWANTED = "the receiver does not want it"

_log = get_logger(__name__)

PrivacyFunction = Callable[[dict[str, Any]], Any]
"""What is known of a message (`shown_facts`) to None: says nothing, the next rule decides; True: it
may go out; False or a text: it may not, for that reason; a number: hold until then (ms UTC)."""


class PrivacyFunctions(Protocol):
    """Where a rule finds the function it names; a plain dict is one."""

    def get(self, name: str, /) -> PrivacyFunction | None:
        """The function, or None."""


NO_FUNCTIONS: PrivacyFunctions = {}


def ask_function(
    rule: PrivacyRule, facts: PrivacyFacts, functions: PrivacyFunctions
) -> Verdict | None:
    """What the function that the rule names says; None when it says nothing. Never raises."""
    function = functions.get(rule.ask)
    if function is None:
        return _failed(rule, facts, "it is not there")
    try:
        said = function(shown_facts(rule, facts))
    except Exception as error:  # whatever a foreign function raises
        return _failed(rule, facts, repr(error))
    match said:
        case None:
            return None
        case True:
            return Allowed()
        case False:
            return Refuse(rule.reason or _UNWANTED)
        case str():
            return Refuse(clean(said).strip()[:_LONGEST_REASON] or rule.reason or _UNWANTED)
        case int() if facts.now_ms < said <= facts.now_ms + _LONGEST_HOLD_MS:
            return Hold(said, rule.reason or "until it suits the receiver")
        case int():
            return _failed(rule, facts, f"{said} is no moment within the next year, in ms UTC")
        case _:
            return _failed(rule, facts, f"it gave a {type(said).__name__}")


def shown_facts(rule: PrivacyRule, facts: PrivacyFacts) -> dict[str, Any]:
    """What a function is told; the content of a message is not among it."""
    local = local_time(facts.now_ms, rule.zone)
    return {
        "peer": facts.peer,
        "type": facts.type,
        "subtype": facts.subtype,
        "sender": str(facts.sender),
        "urgent": facts.urgent,
        "now_ms": facts.now_ms,
        "sent_ms": facts.sent_ms or facts.now_ms,
        "zone": rule.zone,
        "local": local.isoformat(timespec="minutes"),
        "weekday": local.weekday(),
    }


class WorkerPrivacyFunctions:
    """Every function by its name, in one worker process that is started at the first call.

    Names are `module:function`, looked for in `import_paths` first, or those of plug-ins. To be
    used from worker threads: a call blocks up to the deadline, at the first also while Python
    starts. One that hung or died is not called again for 30 s.
    """

    def __init__(
        self, clock: Clock, import_paths: tuple[str, ...] = (), *, deadline_ms: int = DEADLINE_MS
    ) -> None:
        self._clock, self._deadline_ms = clock, deadline_ms
        self._worker = WorkerFunctions(
            clock,
            import_paths,
            group="privacy",
            what="privacy function",
            codes="privacy",
            failure=CallFailed,
        )
        self._paused: dict[str, int] = {}

    def get(self, name: str, /) -> PrivacyFunction | None:
        """A function that asks the worker; what is not there raises when it is called."""
        return partial(self._call, name)

    def fault_of(self, name: str) -> str:
        """Why the function cannot be loaded; empty: it can. Takes up to 20 s."""
        return self._worker.fault_of(name)

    def close(self) -> None:
        """Ends the worker; every later call fails, so a verdict that needs one refuses."""
        self._worker.close()

    def _call(self, name: str, told: dict[str, Any]) -> Any:
        now_ms = self._clock.steady_ns() // 1_000_000
        if self._paused.get(name, now_ms) > now_ms:
            raise CallFailed("privacy.paused", "it failed a moment ago and is not asked for 30 s")
        packed = self._worker.packed([told], name)
        (outcome,) = self._worker.call_many(name, [packed], self._deadline_ms)
        if isinstance(outcome, WorkerReply):
            return outcome.results[0]
        if outcome.code in ("privacy.timeout", "privacy.died"):
            self._paused[name] = now_ms + PAUSE_MS
        raise outcome


def _failed(rule: PrivacyRule, facts: PrivacyFacts, why: str) -> Refuse:
    _log.warning("privacy function failed", function=rule.ask, peer=facts.peer, why=why)
    # The sender learns that it failed, not how: the reason is the site's matter.
    return Refuse(f"the privacy function {rule.ask!r} failed")
