"""The text of a function that turns a whole batch: the same lines as for one event, in a loop.
[ME-8]

Calling a function for every event costs as much as converting two attributes. What an event gives
or why it is rejected cannot differ, since the lines are written by the same writer.
"""

from __future__ import annotations

from rapport.mediation.model.generator import Generated, Writer
from rapport.mediation.model.plan import Keep, Object, Plan


def generate_batch(plan: Plan, *, own: bool = False) -> Generated | None:
    """The source of `transform_all(values, results, rejected)`, which fills both lists, empty
    before; None for plans whose events are better turned one by one: several stages, several
    results, or an event that is converted as a whole.
    """
    stages = [step for step in plan.stages if not isinstance(step, Keep)]
    if len(stages) != 1 or not isinstance(stages[0], Object) or stages[0].each:
        return None
    writer = Writer(own=own)
    body = writer.in_place(stages[0])
    lines = [
        *writer.lines,
        "def transform_all(values, results, rejected):",
        "    append = results.append",
        "    for value in values:",
        "        try:",
        *(f"            {line}" for line in body),
        "        except Rejected as rejection:",
        "            rejected.append((len(results) + len(rejected), rejection))",
        "        else:",
        "            append(value)",
    ]
    return Generated("\n".join(lines) + "\n", tuple(writer.conversions))
