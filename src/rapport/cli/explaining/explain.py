"""`rapport explain ID`: the chain of causes from a message back to the raw readings, and for a
detection the conditions that held; from the log, a lake, recorded files, or a running node. [PO-11]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from rapport.cli.explaining.reading import LakeOption
from rapport.cli.terminal import stdout, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.text import Text
    from rich.tree import Tree

    from rapport.channel.channel import Channels
    from rapport.channel.event_lookup import CauseNode
    from rapport.cli.remote import Remote
    from rapport.policy.explain.answer import Explanation
    from rapport.site.site import Site

_LONGEST_DATA = 160


def explain(
    *what: Annotated[
        str,
        Parameter(
            help="A message, detection, delivery or event id; with --policy for whom: ALIAS=ID."
        ),
    ],
    policy: Annotated[
        str, Parameter(help="Instead of an id: how this policy stood around --at.")
    ] = "",
    at: Annotated[str, Parameter(help="With --policy: when, as for why-not.")] = "",
    window: Annotated[str, Parameter(help="With --policy: how far around.")] = "",
    recorded: Annotated[
        list[str] | None, Parameter(help="With --policy: recorded files, or SOURCE=FILE.")
    ] = None,
    lake: LakeOption = None,
    json: Annotated[bool, Parameter(help="The tree as JSON.")] = False,
    text: Annotated[bool, Parameter(help="With the policy's text.", negative="")] = False,
    where: Where = HERE,
) -> int:
    """Show what a message or detection follows from, back to what was received; of an id its
    beginning is enough. With --policy and --at: a detection that only a back-test or a replay has
    found, by its identities and time. With --url a running node is asked, by the whole id.
    """
    if policy:
        from rapport.cli.explaining.why_not import why_not

        _check_at(at)
        return why_not(
            policy,
            *what,
            at=at,
            window=window,
            events=recorded,
            lake=lake,
            json=json,
            where=where,
        )
    event_id = _only_id(what)
    if where.url is not None:
        tree, found, said = _explained_there(where.remote(), event_id)
    else:
        directory = where.directory
        from rapport.cli.explaining.reading import read_history

        (tree, found), said = read_history(
            directory, lake, lambda channels: _explained(directory, channels, event_id)
        )
    if json:
        more: dict[str, Any] = {"why": found} if found else {}
        more |= {"notes": said} if said else {}
        write_json({**_members(tree), **more} if more else tree)
        return 0
    stdout().print(branch(tree))
    for one in found:
        _show(one, text)
    for note in said:
        stdout().print(_aside(note), soft_wrap=True)
    return 0


def _explained_there(
    remote: Remote, event_id: str
) -> tuple[CauseNode, list[Explanation], list[str]]:
    """What the doors of a node say."""
    from urllib.parse import quote

    from rapport.channel.event_lookup import CauseNode
    from rapport.policy.explain.answer import Explanation

    answer = remote.get(f"/explain/{quote(event_id, safe='')}")
    said = dict.fromkeys(answer.pop("notes", ()))
    tree = _tree_of(answer, CauseNode)
    found = []
    for one in _detections(tree):
        why = remote.get(f"/explain/{quote(one.id, safe='')}/why")
        said |= dict.fromkeys(why.pop("notes", ()))
        found.append(msgspec.convert(why, Explanation))
    return tree, found, list(said)


def _tree_of(answer: dict[str, Any], kind: type[CauseNode]) -> CauseNode:
    """A tree as the door gives it; what events hold is kept as JSON."""
    causes = [_tree_of(one, kind) for one in answer["causes"]]
    data = msgspec.Raw(msgspec.json.encode(answer["data"]))
    return kind(**{**answer, "causes": causes, "data": data})


def _aside(note: str) -> Text:
    from rich.text import Text

    return Text(f"\n{note}", style="yellow")


def _only_id(what: tuple[str, ...]) -> str:
    if len(what) != 1:
        raise InvalidInput(
            f"{len(what)} ids were given" if what else "no id was given",
            code="explain.no_id",
            hint="rapport explain ID, or rapport explain --policy NAME A=5 --at TIME",
        )
    return what[0]


def _check_at(at: str) -> None:
    if not at:
        raise InvalidInput(
            "nothing says when", code="explain.no_time", hint="add --at 2026-03-02T09:14:05Z"
        )


def _members(tree: CauseNode) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(tree)))


async def _explained(
    directory: Path, channels: Channels, event_id: str
) -> tuple[CauseNode, list[Explanation]]:
    from rapport.channel.event_lookup import cause_tree, resolve_id_prefix

    tree = await cause_tree(channels, await resolve_id_prefix(channels, event_id))
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


async def _why(directory: Path, channels: Channels, node: CauseNode) -> Explanation:
    import asyncio

    from rapport.core.detection import Detection
    from rapport.site.explain import asking_of

    detection = msgspec.json.decode(node.data, type=Detection)
    site = await asyncio.to_thread(_site, directory)
    return await asking_of(site, channels).why(detection)


def _site(directory: Path) -> Site:
    from rapport.site.site import load_site

    return load_site(directory, refusing_policies=False)


def _show(one: Explanation, with_text: bool) -> None:
    from rich.text import Text

    from rapport.cli.explaining.text import candidate_tree
    from rapport.policy.explain.wording import duration

    console = stdout()
    became = "fired" if one.held is None or one.held.became == "detected" else "was left open"
    head = f"\nWhy {one.policy} {became}, version {one.version}"
    console.print(Text(head, style="bold"))
    if one.held is None:
        text = "the log or the tables no longer hold what it was found by"
        console.print(Text(f"  {text}", style="yellow"))
    else:
        console.print(candidate_tree(one.held))
    for gap in one.gaps:
        console.print(Text(f"  {gap.text}", style="yellow"), soft_wrap=True)
    if one.left_out:
        window = duration(one.once_per_ms or 0)
        text = f"  {one.left_out} more like it were suppressed by `at most once per {window}`"
        console.print(Text(text, style="dim"))
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
        (f"received {format_time(node.received)}", "dim"),
        (", imported as history" if node.history else "", "yellow"),
        (", found in the lake\n" if node.found_in == "lake" else "\n", "dim"),
        (f"meaning given by {node.interpretation}\n" if node.interpretation else "", "dim"),
        data,
    )
    tree = Tree(label)
    for cause in node.causes:
        tree.children.append(branch(cause))
    for missing in node.missing:
        tree.add(Text(f"{missing}: no longer in the log", style="yellow"))
    return tree
