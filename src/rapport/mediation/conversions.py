"""Plug-in conversions, called with a deadline in a process that can be ended. [ME-4, UX-9]

Each source with plug-ins has a worker process of its own, started at its first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapport.kernel.clock import Clock
from rapport.kernel.worker_client import WorkerFunctions
from rapport.mediation.interpretation import ConversionRule
from rapport.mediation.rejection import Rejected


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
