"""Plug-in conversions, called with a deadline in a process that can be ended. [ME-4, UX-9]

Each source with plug-ins has a worker process of its own, started at its first call.

Functions of the site for typed interpretations, always in a worker process. [ME-4, UX-9]

A function that raises, hangs, dies or gives what no message can hold rejects its event and stops
nothing. Batches ask for all their events in one message where possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.clock import Clock
from rapport.kernel.worker import Reply
from rapport.kernel.worker_functions import WorkerFunctions
from rapport.mediation.codegen.transformer import BatchResult, Transformer
from rapport.mediation.conversion.conversions import Call, Chain, Conversion
from rapport.mediation.interpretations.model import ConversionRule
from rapport.mediation.memory import Function, remembers
from rapport.mediation.rejections import Rejected


class WorkerConversions(WorkerFunctions[Rejected]):
    """The plug-in conversions of one source; holds at most one worker process. Calls take turns."""

    def __init__(self, clock: Clock, import_paths: Sequence[str] = ()) -> None:
        super().__init__(
            clock,
            import_paths,
            group="conversions",
            what="conversion",
            codes="conversion",
            failure=Rejected,
        )

    def call(self, rule: ConversionRule, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results, one per name in `rule.give`; raises Rejected with `conversion.*`.

        Blocks up to the rule's deadline, at the first call up to START_DEADLINE_MS longer.
        """
        reply = self.call_one(rule.call, values, rule.deadline_ms, dict(rule.arguments))
        if reply.outcome != "ok":
            raise Rejected("conversion.raised", f"the conversion {rule.call!r}: {reply.message}")
        if len(reply.results) != len(rule.give):
            raise Rejected(
                "conversion.bad_result",
                f"the conversion {rule.call!r} gave {len(reply.results)} values",
                f"declared are {len(rule.give)}: {', '.join(rule.give)}",
            )
        return tuple(reply.results)


DEADLINE_MS = 1_000
_ROUNDS = 4
"""How often a batch is gone through to gather calls; an event with more of them in a row, or a list
whose elements need one each, then asks one by one.
"""


class _PendingCall(Rejected):
    """The answer is not there yet; never leaves this file."""

    def __init__(self) -> None:
        super().__init__("conversion.later", "asked for in the next message")


class SiteFunctions(Mapping[str, Function]):
    """The functions by name, as `Call` and `Stateful` use them; one worker process for all.

    Names are `module:function` or an installed plug-in of the group `rapport.conversions`. To be
    used by one thread at a time; `close` from any.
    """

    def __init__(
        self, names: Iterable[str], worker: WorkerConversions, *, deadline_ms: int = DEADLINE_MS
    ) -> None:
        self._worker, self._deadline_ms = worker, deadline_ms
        self._functions = {name: partial(self._call, name) for name in dict.fromkeys(names)}
        self._answers: dict[tuple[str, bytes], Reply | Rejected] = {}
        self._wanted: dict[tuple[str, bytes], None] | None = None

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def close(self) -> None:
        """Ends the worker; every later call is rejected."""
        self._worker.close()

    def check(self) -> list[Problem]:
        """Loads every function in the worker and says which cannot be; takes up to 20 s each."""
        found = []
        for name in self._functions:
            fault = self._worker.fault_of(name)
            if fault:
                hint = "name module:function, or an installed plug-in"
                found.append(Problem(code="conversion.unavailable", message=fault, hint=hint))
        return found

    def transform_all(self, transformer: Transformer, values: Sequence[Any]) -> BatchResult:
        """`transformer.batch`, with the calls of all events in few messages to the worker.

        The transformer must have been made with these functions. Conversions that remember are
        asked event by event, since each depends on the one before.
        """
        calls = any(_calls(each) for each in transformer.conversions)
        if not calls or any(remembers(each) for each in transformer.conversions):
            return transformer.batch(values)
        try:
            outcomes = self._gathered(transformer, values)
        finally:
            self._answers, self._wanted = {}, None
        return _in_order(outcomes, several=transformer.plan.several)

    def _gathered(self, transformer: Transformer, values: Sequence[Any]) -> list[Any]:
        outcomes: list[Any] = [_PendingCall()] * len(values)
        waiting = list(range(len(values)))
        for round_number in range(_ROUNDS + 1):
            self._wanted = {} if round_number < _ROUNDS else None
            for index in waiting:
                outcomes[index] = _outcome(transformer, values[index])
            waiting = [index for index in waiting if isinstance(outcomes[index], _PendingCall)]
            if not waiting:
                break
            self._ask_wanted()
        return outcomes

    def _ask_wanted(self) -> None:
        wanted = list(self._wanted or ())
        for name in dict.fromkeys(name for name, _ in wanted):
            packed = [each for asked, each in wanted if asked == name]
            replies = self._worker.call_many(name, packed, self._deadline_ms)
            self._answers.update(zip(((name, each) for each in packed), replies, strict=True))

    def _call(self, name: str, *values: Any) -> Any:
        packed = self._worker.packed(values, name)
        reply = self._answers.get((name, packed))
        if reply is None and self._wanted is not None:
            self._wanted[name, packed] = None
            raise _PendingCall
        if reply is None:
            reply = self._worker.call_many(name, [packed], self._deadline_ms)[0]
        if isinstance(reply, Rejected):
            raise Rejected(reply.code, reply.message, reply.hint)
        result = reply.results[0]
        if isinstance(result, (list, dict)):  # two events that ask the same must not share it
            return msgspec.msgpack.decode(msgspec.msgpack.encode(result))
        return result


def site_functions(
    names: Iterable[str],
    clock: Clock,
    import_paths: Sequence[str] = (),
    *,
    deadline_ms: int = DEADLINE_MS,
) -> SiteFunctions:
    """Functions of the site with a worker process of their own, started at the first call."""
    return SiteFunctions(names, WorkerConversions(clock, import_paths), deadline_ms=deadline_ms)


def _outcome(transformer: Transformer, value: Any) -> Any:
    try:
        return transformer(value)
    except Rejected as rejected:
        return rejected


def _in_order(outcomes: Sequence[Any], *, several: bool) -> BatchResult:
    found = BatchResult([], [])
    append = found.results.extend if several else found.results.append
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Rejected):
            found.rejected.append((index, outcome))
        else:
            append(outcome)
    return found


def _calls(conversion: Conversion) -> bool:
    how = conversion.how
    return isinstance(how, Call) or (isinstance(how, Chain) and any(map(_calls, how.steps)))
