"""Site functions: plug-in conversions, called with a deadline in a worker process. [ME-4, UX-9]

Each source with plug-ins has a worker process of its own, started at its first call. A function
that raises, hangs, dies or returns a value that cannot be sent rejects its event and affects no
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rapport.kernel.clock import Clock
from rapport.kernel.worker_client import WorkerFunctions
from rapport.mediation.interpretations.model import ConversionRule
from rapport.mediation.memory import Function
from rapport.mediation.rejections import RejectedValue


class WorkerConversions(WorkerFunctions[RejectedValue]):
    """The plug-in conversions of one source in at most one worker process; calls are
    serialised.
    """

    def __init__(self, clock: Clock, import_paths: Sequence[str] = ()) -> None:
        super().__init__(
            clock,
            import_paths,
            group="conversions",
            what="conversion",
            codes="conversion",
            failure=RejectedValue,
        )

    def call(self, rule: ConversionRule, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns one result per name in `rule.give`; raises Rejected with `conversion.*`.
        Blocks up to the rule's deadline, at the first call up to START_DEADLINE_MS longer.
        """
        reply = self.call_one(rule.call, values, rule.deadline_ms, dict(rule.arguments))
        if reply.outcome != "ok":
            raise RejectedValue(
                "conversion.raised", f"the conversion {rule.call!r}: {reply.message}"
            )
        if len(reply.results) != len(rule.give):
            raise RejectedValue(
                "conversion.bad_result",
                f"the conversion {rule.call!r} gave {len(reply.results)} values",
                f"declared are {len(rule.give)}: {', '.join(rule.give)}",
            )
        return tuple(reply.results)


DEADLINE_MS = 1_000


class SiteFunctions(Mapping[str, Function]):
    """The functions by the names that `Call` and `Stateful` use, in one worker process. Names
    are `module:function` or an installed plug-in of the group `rapport.conversions`. For one
    thread at a time; `close` from any thread.
    """

    def __init__(
        self, names: Iterable[str], worker: WorkerConversions, *, deadline_ms: int = DEADLINE_MS
    ) -> None:
        self._worker, self._deadline_ms = worker, deadline_ms
        self._functions = {name: partial(self._call, name) for name in dict.fromkeys(names)}

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def close(self) -> None:
        """Ends the worker; later calls are rejected."""
        self._worker.close()

    def _call(self, name: str, *values: Any) -> Any:
        packed = self._worker.packed(values, name)
        reply = self._worker.call_many(name, [packed], self._deadline_ms)[0]
        if isinstance(reply, RejectedValue):
            raise RejectedValue(reply.code, reply.message, reply.hint)
        return reply.results[0]


def site_functions(
    names: Iterable[str],
    clock: Clock,
    import_paths: Sequence[str] = (),
    *,
    deadline_ms: int = DEADLINE_MS,
) -> SiteFunctions:
    """Opens site functions with their own worker process, started at the first call."""
    return SiteFunctions(names, WorkerConversions(clock, import_paths), deadline_ms=deadline_ms)
