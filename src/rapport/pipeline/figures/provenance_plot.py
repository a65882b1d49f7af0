"""Conversations as a graph: what was seen, what was found, what was said to whom, what came back.
Large ones are cut, with a count of what is left out. Pure. [PI-6, CO-18]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.pipeline.drawing.svg import box, curve, svg, text, told
from rapport.pipeline.figures.rows import Edge

_WIDTH, _ROW, _NODE = 980, 26, 20
_READING, _DETECTION, _MESSAGE, _PEOPLE = 0, 190, 430, 690
_WIDTHS = {_READING: 130, _DETECTION: 190, _MESSAGE: 200, _PEOPLE: 280}
_MOST_READINGS, _MOST_MESSAGES, _MOST_FOLLOWING = 4, 4, 8
_GOOD, _BAD = frozenset(("handed", "confirmed")), frozenset(("failed", "unknown"))


class _Node(msgspec.Struct, frozen=True):
    label: str
    said: str
    style: str = "node"


class _Said(msgspec.Struct, frozen=True):
    """A message and what followed from it."""

    node: _Node
    following: list[_Node]


class _Block(msgspec.Struct, frozen=True):
    """One detection (or a message without one) with everything around it."""

    readings: list[_Node]
    detection: _Node | None
    messages: list[_Said]

    @property
    def rows(self) -> int:
        """How many rows it takes."""
        right = sum(max(len(one.following), 1) for one in self.messages)
        return max(len(self.readings), right, 1)


def provenance_plot(edges: Sequence[Edge], title: str) -> str:
    """The conversations of these edges, one below the other."""
    parts: list[str] = []
    names = ((_READING, "seen"), (_DETECTION, "found"), (_MESSAGE, "said"), (_PEOPLE, "to whom"))
    parts += [text(x + 2, 12, name, "small strong") for x, name in names]
    row = 1
    blocks = list(_blocks(edges))
    for block in blocks:
        parts += _drawn(block, row * _ROW)
        row += block.rows + 1
    said = f"{len(edges)} edges between what was seen, found and said, in {len(blocks)} blocks."
    return svg(title, said, _WIDTH, row * _ROW, parts)


def _blocks(edges: Sequence[Edge]) -> Iterator[_Block]:
    """By conversation, the newest first, then by what led to its messages."""
    conversations: dict[str, list[Edge]] = {}
    for edge in edges:
        conversations.setdefault(edge.conversation, []).append(edge)
    newest = {name: max(edge.time or 0 for edge in own) for name, own in conversations.items()}
    for name in sorted(conversations, key=lambda name: (-newest[name], name)):
        own = conversations[name]
        led = {edge.to_id: edge for edge in own if edge.relation == "led to"}
        sayers = [edge.from_id for edge in own if edge.from_kind == "message"]
        sayers += [edge.to_id for edge in own if edge.to_kind == "message"]
        messages = sorted(dict.fromkeys(sayers), key=lambda id: (_led_at(led.get(id)), id))
        by_detection: dict[str, list[str]] = {}
        for id in messages:
            found = led[id].from_id if id in led else ""
            by_detection.setdefault(found, []).append(id)
        for found, ids in by_detection.items():
            yield _block(own, led, found, ids)


def _led_at(edge: Edge | None) -> int:
    return 0 if edge is None or edge.time is None else edge.time


def _block(own: Sequence[Edge], led: dict[str, Edge], found: str, ids: Sequence[str]) -> _Block:
    seen = [edge.from_id for edge in own if edge.relation == "shows" and edge.to_id == found]
    readings = [_Node(_short(id, 16), f"reading {id}") for id in seen]
    policy = led[ids[0]].via if found else ""
    node = _Node(_short(policy or found, 24), f"detection {found} by {policy}") if found else None
    messages = [_Said(_message(id, led.get(id)), _following(own, id)) for id in ids]
    return _Block(
        _at_most(readings, _MOST_READINGS), node, _messages_at_most(messages, _MOST_MESSAGES)
    )


def _message(id: str, edge: Edge | None) -> _Node:
    result = edge.state if edge is not None else ""
    style = {"done": "node good", "failed": "node bad", "timed_out": "node bad"}
    label = f"{id[:8]} · {result.replace('_', ' ')}" if result else id[:8]
    return _Node(label, f"message {id} {result}".strip(), style.get(result, "node"))


def _following(own: Sequence[Edge], message: str) -> list[_Node]:
    nodes = []
    edges = [edge for edge in own if message in (edge.from_id, edge.to_id)]
    for edge in sorted(edges, key=lambda edge: edge.time or 0):
        match edge.relation:
            case "told" if edge.from_id == message:
                style = "node good" if edge.state in _GOOD else "node"
                style = "node bad" if edge.state in _BAD else style
                nodes.append(_Node(f"{edge.to_id} · {edge.via}: {edge.state}", _say(edge), style))
            case "answered" if edge.to_id == message:
                nodes.append(_Node(f"{edge.from_id} answered", _say(edge), "node answer"))
            case "escalated":
                nodes.append(_Node(f"escalated: {edge.to_id}", _say(edge), "node"))
            case "refers to" if edge.from_id == message:
                nodes.append(_Node(f"refers to {edge.to_id[:8]}", _say(edge)))
            case "appended":
                nodes.append(_Node(f"appended to {edge.via}", _say(edge)))
    return _at_most(nodes, _MOST_FOLLOWING)


def _say(edge: Edge) -> str:
    return f"{edge.from_kind} {edge.from_id} {edge.relation} {edge.to_kind} {edge.to_id}"


def _at_most(nodes: list[_Node], most: int) -> list[_Node]:
    if len(nodes) <= most:
        return nodes
    left_out = len(nodes) - most + 1
    return [*nodes[: most - 1], _Node(f"and {left_out:,} more", f"{left_out:,} more", "more")]


def _messages_at_most(messages: list[_Said], most: int) -> list[_Said]:
    if len(messages) <= most:
        return messages
    left_out = len(messages) - most + 1
    more = _Node(f"and {left_out:,} more", f"{left_out:,} more messages", "more")
    return [*messages[: most - 1], _Said(more, [])]


def _drawn(block: _Block, top: float) -> list[str]:
    """The nodes and the lines between them; each stands in the middle of what follows from it."""
    middle = top + (block.rows - 1) * _ROW / 2
    lines, nodes = [], []
    for place, reading in enumerate(block.readings):
        y = top + place * _ROW + (block.rows - len(block.readings)) * _ROW / 2
        nodes.append(_node(_READING, y, reading))
        lines.append(_between(_READING, y, _DETECTION, middle))
    if block.detection is not None:
        nodes.append(_node(_DETECTION, middle, block.detection))
    row = 0
    for said in block.messages:
        rows = max(len(said.following), 1)
        y = top + (row + (rows - 1) / 2) * _ROW
        nodes.append(_node(_MESSAGE, y, said.node))
        if block.detection is not None:
            lines.append(_between(_DETECTION, middle, _MESSAGE, y))
        for place, one in enumerate(said.following):
            at = top + (row + place) * _ROW
            nodes.append(_node(_PEOPLE, at, one))
            lines.append(_between(_MESSAGE, y, _PEOPLE, at))
        row += rows
    return [*lines, *nodes]


def _node(x: float, y: float, node: _Node) -> str:
    width = _WIDTHS[int(x)]
    label = _short(node.label, width // 7)
    shape = box(x, y, width, _NODE, node.style, round=4) + text(x + 7, y + 14.5, label, "small")
    return told(shape, node.said)


def _between(left: int, y1: float, right: int, y2: float) -> str:
    return curve(left + _WIDTHS[left], y1 + _NODE / 2, right, y2 + _NODE / 2)


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"
