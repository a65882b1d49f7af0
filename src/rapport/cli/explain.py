"""`rapport explain ID`: the chain of causes from a message back to the raw readings. [PO-11]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stdout, write_json
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rich.tree import Tree

    from rapport.channel.causes import CauseNode

_LONGEST_DATA = 160


def explain(
    event_id: Annotated[str, Parameter(help="A message, detection, delivery or event id.")],
    *,
    site: SiteOption = None,
    json: Annotated[bool, Parameter(help="The tree as JSON.")] = False,
) -> None:
    """Show what a message or detection follows from, back to what was received."""
    from rapport.channel.causes import cause_tree
    from rapport.cli.local import read_channels

    tree = read_channels(site_directory(site), lambda channels: cause_tree(channels, event_id))
    if json:
        write_json(tree)
    else:
        stdout().print(branch(tree))


def branch(node: CauseNode) -> Tree:
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
