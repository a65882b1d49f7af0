"""`rapport explain ID`: the chain of causes from a message back to the raw readings, and for a
detection the conditions that held. [PO-11]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stdout, write_json
from rapport.core.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.tree import Tree

    from rapport.channel.causes import CauseNode
    from rapport.channel.channel import Channels
    from rapport.policy.explaining.verdict import Explained
    from rapport.site.site import Site

_LONGEST_DATA = 160


def explain(
    event_id: Annotated[str, Parameter(help="A message, detection, delivery or event id.")],
    *,
    site: SiteOption = None,
    json: Annotated[bool, Parameter(help="The tree as JSON.")] = False,
    policy: Annotated[bool, Parameter(help="With the policy's text.", negative="")] = False,
) -> None:
    """Show what a message or detection follows from, back to what was received; of an id its
    beginning is enough.
    """
    from rapport.cli.local import read_channels

    directory = site_directory(site)
    tree, found = read_channels(
        directory, lambda channels: _explained(directory, channels, event_id)
    )
    if json:
        write_json(tree if not found else {**_members(tree), "why": found})
        return
    stdout().print(branch(tree))
    for one in found:
        _show(one, policy)


def _members(tree: CauseNode) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(tree)))


async def _explained(
    directory: Path, channels: Channels, event_id: str
) -> tuple[CauseNode, list[Explained]]:
    from rapport.channel.causes import cause_tree
    from rapport.channel.id_prefix import whole_id

    tree = await cause_tree(channels, await whole_id(channels, event_id))
    detections = list(_detections(tree))
    if not detections:
        return tree, []
    return tree, [await _why(directory, channels, node) for node in detections]


def _detections(node: CauseNode) -> Iterator[CauseNode]:
    from rapport.core.detection import DETECTED, UNDECIDED

    if node.type in (DETECTED, UNDECIDED):
        yield node
    for cause in node.causes:
        yield from _detections(cause)


async def _why(directory: Path, channels: Channels, node: CauseNode) -> Explained:
    import asyncio

    from rapport.core.detection import Detection
    from rapport.site.explaining import asking_of

    detection = msgspec.json.decode(node.data, type=Detection)
    site = await asyncio.to_thread(_site, directory)
    return await asking_of(site, channels).why(detection)


def _site(directory: Path) -> Site:
    from rapport.site.site import load_site

    return load_site(directory, refusing_policies=False)


def _show(one: Explained, with_text: bool) -> None:
    from rich.text import Text

    from rapport.cli.explain_text import candidate_tree
    from rapport.policy.explaining.wording import duration

    console = stdout()
    became = "fired" if one.held is None or one.held.became == "detected" else "was left open"
    head = f"\nWhy {one.policy} {became}, version {one.version}"
    console.print(Text(head, style="bold"))
    if one.held is None:
        text = "the log or the tables no longer hold what it was found by"
        console.print(Text(f"  {text}", style="yellow"))
    else:
        console.print(candidate_tree(one.held))
    if one.left_out:
        text = f"  {one.left_out} more like it were left out after it: at most once per"
        console.print(Text(f"{text} {duration(one.once_per_ms or 0)}", style="dim"))
    if with_text and one.text:
        console.print(Text(f"\n{one.text.rstrip()}", style="dim"))


def branch(node: CauseNode) -> Tree:
    """A cause and its own causes."""
    from rich.text import Text
    from rich.tree import Tree

    data = bytes(node.data)[:_LONGEST_DATA].decode("utf-8", "replace")
    label = Text.assemble(
        (node.type, "bold"),
        f"  {node.id}\n",
        (f"{node.channel} #{node.position}, event time {format_time(node.time)}, ", "dim"),
        (f"received {format_time(node.received)}\n", "dim"),
        (f"meaning given by {node.interpretation}\n" if node.interpretation else "", "dim"),
        data,
    )
    tree = Tree(label)
    for cause in node.causes:
        tree.children.append(branch(cause))
    for missing in node.missing:
        tree.add(Text(f"{missing}: no longer in the log", style="yellow"))
    return tree
