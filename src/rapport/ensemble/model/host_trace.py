"""What a host tells the trace. [EN-2, EN-3]"""

from __future__ import annotations

from rapport.ensemble.model.calls import Call, Outcome
from rapport.ensemble.trace import Kind, TraceEvent, Tracing


def tell_outcome(node: str, call: Call, outcome: Outcome, trace: Tracing) -> None:
    """One event for a process; one or two for each pair of an evaluation."""
    wall_ms, steady_ms = call.now
    if call.component:
        fault = f": {outcome.faults[0].code}" if outcome.faults else ""
        trace(
            TraceEvent(
                steady_ms,
                wall_ms,
                Kind.PROCESS_RAN,
                node,
                component=call.component,
                detail=f"{call.name}{fault}",
            )
        )
        return
    for looked in outcome.looked_at:
        for kind in (Kind.EVALUATED, Kind.EXCHANGED)[: 1 + looked.is_formed]:
            trace(
                TraceEvent(
                    steady_ms,
                    wall_ms,
                    kind,
                    node,
                    component=looked.other,
                    version=looked.version,
                    other=looked.local,
                    detail=call.name,
                )
            )
