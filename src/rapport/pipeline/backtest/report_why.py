"""Explanations as nested lists of a page: what held, what did not, and by which readings. [PI-9,
PO-11]
"""

from __future__ import annotations

from html import escape

from rapport.core.times import format_time
from rapport.pipeline.backtest.result import Example
from rapport.pipeline.drawing.calendar import Calendar
from rapport.policy.explain.answer import Candidate, ConditionNode, Truth, WhyNotAnswer
from rapport.policy.explain.wording import bindings_text, relative

_MARKS: dict[Truth, tuple[str, str]] = {
    "true": ("✓", "true"),
    "false": ("✗", "not true"),
    "unknown": ("?", "not known"),
}


def explained(example: Example, calendar: Calendar, number: int) -> str:
    """One finding with why it was found and why the other version did not find it."""
    when, about = calendar.clock(example.detection.time), bindings_text(example.detection.bindings)
    parts = [f'<article id="why-{number}"><h3>{escape(when)} · {escape(about)}</h3>']
    if example.why is not None:
        parts.append(f"<p>Why <b>{escape(example.why.policy)}</b> fired</p>")
        if example.why.held is None:
            parts.append('<p class="soft">The readings around it do not tell.</p>')
        else:
            parts.append(_candidate(example.why.held))
    if example.why_not is not None:
        parts.append(_answer(example.why_not))
    return "".join([*parts, "</article>"])


def _answer(answer: WhyNotAnswer) -> str:
    did = "fired, too" if answer.fired else "did not"
    parts = [f"<p>Why <b>{escape(answer.policy)}</b> {did}</p>"]
    shown = answer.fired or answer.candidates
    parts.append(_candidate(shown[0]) if shown else '<p class="soft">Nobody came near.</p>')
    if answer.nearest is not None and not answer.fired:
        said = f"Nearest miss: {answer.nearest.text}, and it would have fired."
        parts.append(f"<p>{escape(said)}</p>")
    return "".join(parts)


def _candidate(candidate: Candidate) -> str:
    nodes = "".join(_node(node, candidate.time) for node in candidate.clauses)
    told = f"times are told from {format_time(candidate.time)}"
    return f'<ul class="why">{nodes}</ul><p class="soft">{escape(told)}</p>'


def _node(node: ConditionNode, reference: int) -> str:
    mark, said = _MARKS[node.truth]
    because = f'<br><span class="soft">{escape(node.because)}</span>' if node.because else ""
    readings = "".join(
        f"<li>{escape(one.text)} <span class='soft'>{escape(relative(one.time - reference))}, "
        f"{escape(one.source)}, {escape(one.id)}</span></li>"
        for one in node.readings
    )
    children = "".join(_node(child, reference) for child in node.children)
    below = f'<ul class="why">{readings}{children}</ul>' if readings or children else ""
    sign = f'<span class="{node.truth}" role="img" aria-label="{said}">{mark}</span>'
    return f"<li>{sign} {escape(node.text)}{because}{below}</li>"
