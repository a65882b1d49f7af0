"""`rapport ensemble check-trace`: checks a recorded trace by the 25 rules. [EN-3]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.output import print_note, visible, write_json
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.recorded_traces import merge_traces, read_trace
from rapport_lab.ensemble.rules.trace_index import report


def check_trace(
    file: Annotated[Path, Parameter(help="A recorded trace: JSON lines.")],
    *others: Annotated[
        Path, Parameter(help="What other nodes of the same machine recorded meanwhile.")
    ],
    json: JsonOption = False,
) -> int:
    """Check a recorded trace by the rules; exits with 1 when one is broken.

    Of several traces, one of each node, also what passed between these nodes is checked.
    """
    trace = read_trace(file)
    if others:
        trace = merge_traces([trace, *map(read_trace, others)])
    breaches = check_all(trace)
    if json:
        write_json(breaches)
    else:
        print(visible(report(breaches)), flush=True)
        print_note(f"{len(trace.events)} events of {len(trace.system.nodes)} nodes")
    return 1 if breaches else 0
