"""`rapport ensemble membership`: time and cost of failure detection, on simulated time. [EN-10]"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rapport.cli.arguments import JsonOption
from rapport.cli.output import print_note, write_json, write_table
from rapport_lab.swim_study import DetectionResult, LoadResult, measure_detection, measure_load


def membership(
    *,
    nodes: Annotated[int, Parameter(help="Nodes of the network.")] = 50,
    deaths: Annotated[int, Parameter(help="Networks in which one dies, for each line.")] = 10,
    seed: Annotated[int, Parameter(help="The same seed gives the same figures.")] = 1,
    json: JsonOption = False,
) -> None:
    """Measure failure detection at 0, 10 and 30 % loss and with a starved node, and the load."""
    kinds = [(0.0, 0), (0.1, 0), (0.3, 0), (0.0, 1)]
    found = [
        measure_detection(nodes, loss=loss, starved=starved, deaths=deaths, seed=seed)
        for loss, starved in kinds
    ]
    loads = [measure_load(count, seed=seed) for count in sorted({10, nodes, 4 * nodes})]
    if json:
        write_json({"detection": found, "load": loads})
        return
    columns = ("loss", "starved", "suspected", "declared", "all know", "longest", "false")
    write_table(f"{nodes} nodes, in probe periods", columns, [_detection(one) for one in found])
    sent = ("nodes", "messages per period", "bytes per period")
    write_table("load of a node", sent, [_load(one) for one in loads])
    print_note("false: pairs of living nodes of which one called the other dead")


def _detection(one: DetectionResult) -> tuple[str, ...]:
    times = (one.suspected, one.declared, one.all_know, one.longest)
    shown = [f"{periods:.1f}" for periods in times]
    return f"{one.loss:.0%}", str(one.starved), *shown, str(one.false_positives)


def _load(one: LoadResult) -> tuple[str, str, str]:
    return str(one.nodes), f"{one.messages:.2f}", f"{one.bytes:.1f}"
