"""`rapport explain ID` and `rapport why-not POLICY`: the chain of causes of a message or detection,
and the conditions that failed. [PO-11, CH-16]

Both read the log, a lake, recorded files or a running node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter
from rich.text import Text
from rich.tree import Tree

from rapport.channel.event_lookup import CauseNode, cause_tree, resolve_id_prefix
from rapport.cli.arguments import parse_moment
from rapport.cli.hints import wrong_use
from rapport.cli.node_api import HERE, Remote, Where
from rapport.cli.output import stdout, write_json
from rapport.core.detection import DETECTED, ENDED, UNDECIDED, Detection
from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.times import format_time, parse_duration
from rapport.policy.explain.answer import (
    AnswerNote,
    Candidate,
    ConditionNode,
    Explanation,
    ExternalFact,
    ShownReading,
    Truth,
    WhyNotAnswer,
)
from rapport.policy.explain.situation_wording import evidence_lines
from rapport.policy.explain.wording import bindings_text as who
from rapport.policy.explain.wording import duration, relative

if TYPE_CHECKING:
    from rich.console import Console

    from rapport.channel.channel import Channels
    from rapport.policy.explain.why_not import WhyNotQuestion
    from rapport.site.site import Site

T = TypeVar("T")

LakeOption = Annotated[
    str | None, Parameter(name="lake", help="Read this lake instead of the site's log.")
]


def read_history(
    site: Path, lake: str | None, work: Callable[[Channels], Awaitable[T]]
) -> tuple[T, list[str]]:
    """Runs `work` on a lake, or on the site's log, which is helped out by the site's lake where it
    has let events go; and what people should know about where the answer comes from.
    """
    if lake is not None:
        return _from_lake(Path(lake), work)
    from rapport.cli.local_site import data_directory, read_channels
    from rapport.lake.channels import is_lake, open_lake
    from rapport.lake.log_and_lake import LogAndLake, lake_ranges_text

    behind = data_directory(site) / "lake"
    if not is_lake(behind):
        return read_channels(site, work), []
    try:
        opened = open_lake(behind)
    except Corrupt as fault:  # the log may well have everything
        return read_channels(site, work), _damage_notes([fault])
    notes: list[str] = []

    async def both(channels: Channels) -> T:
        joined = LogAndLake(channels, opened)
        found = await work(joined)
        if joined.was_needed:
            notes.append(
                f"some of this is no longer in the log and was read from the lake {behind}: "
                f"{lake_ranges_text(joined.found())}"
            )
        return found

    return read_channels(site, both), notes + _damage_notes(opened.damaged())


def _from_lake(directory: Path, work: Callable[[Channels], Awaitable[T]]) -> tuple[T, list[str]]:
    from rapport.lake.channels import open_lake

    opened = open_lake(directory)

    async def run() -> T:
        return await work(opened)

    return asyncio.run(run()), _damage_notes(opened.damaged())


def _damage_notes(faults: Iterable[Corrupt]) -> list[str]:
    from rapport.node.history import damage_note

    return [damage_note(fault) for fault in faults]


_LONGEST_DATA = 160


def explain(
    *what: Annotated[
        str,
        Parameter(help="Id of a message, detection, delivery or event; with --policy ALIAS=ID."),
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
        tree, found, notes = _explained_there(where.remote(), event_id)
    else:
        directory = where.directory

        (tree, found), notes = read_history(
            directory, lake, lambda channels: _explained(directory, channels, event_id)
        )
    if json:
        more: dict[str, Any] = {"why": found} if found else {}
        more |= {"notes": notes} if notes else {}
        write_json({**_members(tree), **more} if more else tree)
        return 0
    stdout().print(branch(tree))
    for one in found:
        _show(one, text)
    for note in notes:
        stdout().print(_aside(note), soft_wrap=True)
    return 0


def _explained_there(
    remote: Remote, event_id: str
) -> tuple[CauseNode, list[Explanation], list[str]]:
    """Requests the answers from a node's API."""
    answer = remote.get(f"/explain/{quote(event_id, safe='')}")
    notes = dict.fromkeys(answer.pop("notes", ()))
    tree = _tree_of(answer)
    found = []
    for one in _detections(tree):
        why = remote.get(f"/explain/{quote(one.id, safe='')}/why")
        notes |= dict.fromkeys(why.pop("notes", ()))
        found.append(msgspec.convert(why, Explanation))
    return tree, found, list(notes)


def _tree_of(answer: dict[str, Any]) -> CauseNode:
    """A tree as the API returns it; what events hold is kept as JSON."""
    causes = [_tree_of(one) for one in answer["causes"]]
    data = msgspec.Raw(msgspec.json.encode(answer["data"]))
    return CauseNode(**{**answer, "causes": causes, "data": data})


def _aside(note: str) -> Text:
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
    tree = await cause_tree(channels, await resolve_id_prefix(channels, event_id))
    detections = list(_detections(tree))
    if not detections:
        return tree, []
    return tree, [await _why(directory, channels, node) for node in detections]


def _detections(node: CauseNode) -> Iterator[CauseNode]:
    if node.type in (DETECTED, ENDED, UNDECIDED):
        yield node
    for cause in node.causes:
        yield from _detections(cause)


async def _why(directory: Path, channels: Channels, node: CauseNode) -> Explanation:
    from rapport.site.explain import explainer_of

    detection = msgspec.json.decode(node.data, type=Detection)
    site = await asyncio.to_thread(_site, directory)
    return await explainer_of(site, channels).why(detection)


def _site(directory: Path) -> Site:
    from rapport.site.site import load_site

    return load_site(directory, refusing_policies=False)


def _show(one: Explanation, with_text: bool) -> None:
    console = stdout()
    became = "fired" if one.held is None or one.held.became == "detected" else "was left open"
    head = f"\nWhy {one.policy} {became}, version {one.version}"
    console.print(Text(head, style="bold"))
    if one.situation is not None:
        for line in evidence_lines(one.situation):
            console.print(Text(f"  {line}"), soft_wrap=True)
    elif one.held is None:
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


_MARKS: dict[Truth, tuple[str, str]] = {
    "true": ("✓", "green"),
    "false": ("✗", "bold red"),
    "unknown": ("?", "yellow"),
}
_BECAME = {
    "detected": "fired",
    "pending": "is not decided yet",
    "undecided": "left open",
    "left out": "held, but was suppressed",
    "not while": "held, but 'while' was not true",
    "not run": "held, but the policy did not run then",
    "refuted": "was given up",
    "incomplete": "was not complete",
}


def show_answer(console: Console, answer: WhyNotAnswer) -> None:
    """Headline, the best candidates as trees, the nearest miss, and what else bears on it."""
    if answer.situation is not None:
        about = f" for {who(answer.given)}" if answer.given else ""
        truth = answer.situation.truth
        head = f"{answer.policy}{about} at {format_time(answer.at)}: the situation is {truth}"
        console.print(Text(head, style="bold"))
        for line in evidence_lines(answer.situation):
            console.print(Text(f"  {line}"), soft_wrap=True)
        return
    console.print(_headline(answer))
    for number, candidate in enumerate(answer.fired or answer.candidates):
        if number == 0:
            console.print()
            console.print(candidate_tree(candidate))
        else:
            console.print(_short(candidate), soft_wrap=True)
    if not answer.fired and not any(_is_met(one) for one in answer.candidates[:1]):
        console.print()
        console.print(_miss(answer), soft_wrap=True)
    if answer.notes:
        console.print(Text("\nAround it", style="bold"))
    for note in answer.notes:
        when = "" if note.time is None else f"{format_time(note.time)} "
        console.print(Text.assemble(("  · ", "dim"), (when, "dim"), note.text), soft_wrap=True)


def _is_met(candidate: Candidate) -> bool:
    """Whether no condition was missed: something else kept it from firing."""
    return candidate.became in ("left out", "not while") or candidate.first_failed is None


def _outcome(candidate: Candidate) -> str:
    """What became of a candidate, in words that agree with the conditions that held."""
    if candidate.became == "incomplete" and _is_met(candidate):
        return "held, but fewer of its readings were a match already"
    # What stopped it is shown like a condition, and is none.
    if candidate.became in ("left out", "not while"):
        return _BECAME[candidate.became]
    held = sum(node.truth == "true" for node in candidate.clauses)
    return f"{_BECAME[candidate.became]}, {held} of {len(candidate.clauses)} conditions held"


def candidate_tree(candidate: Candidate) -> Tree:
    """The conditions of a policy with who and what they rest on."""
    head = Text.assemble(
        (who(candidate.bindings) or "nobody in particular", "bold"),
        f"  {_outcome(candidate)}\n",
        (f"times in UTC, counted from {format_time(candidate.time)}", "dim"),
    )
    tree = Tree(head)
    shown: set[str] = set()
    for node in candidate.clauses:
        _grow(tree, node, candidate.time, shown)
    for known in candidate.known:
        tree.add(_known(known, candidate.time))
    if candidate.detection is not None and candidate.became == "detected":
        after = relative(candidate.detection.time - candidate.time)
        when = f"detected at {format_time(candidate.detection.time)} ({after})"
        tree.add(Text.assemble((when, "dim")))
    return tree


def _grow(tree: Tree, node: ConditionNode, reference: int, shown: set[str]) -> None:
    """`shown`: readings whose raw form was shown already."""
    mark, style = _MARKS[node.truth]
    label = Text.assemble((f"{mark} ", style), (node.text, "bold"))
    if node.because:
        label.append(f"\n  {node.because}")
    branch = tree.add(label)
    for reading in node.readings:
        branch.add(_reading(reading, reference, is_known=reading.id in shown))
        shown.add(reading.id)
    for child in node.children:
        _grow(branch, child, reference, shown)


def _reading(reading: ShownReading, reference: int, *, is_known: bool) -> Text:
    line = Text.assemble(
        reading.text,
        (f"  {relative(reading.time - reference)}", "cyan"),
        (f"  {reading.source}, {reading.id}", "dim"),
    )
    if reading.raw and not is_known:
        line.append(f"\nreceived as {reading.raw}", "dim")
    return line


def _known(known: ExternalFact, reference: int) -> Text:
    return Text.assemble(
        ("· " if known.is_known else "? ", "green" if known.is_known else "yellow"),
        known.text,
        (f"  {relative(known.time - reference)}", "cyan"),
        (f"\n  {known.told}", "dim"),
    )


def _headline(answer: WhyNotAnswer) -> Text:
    about = f" for {who(answer.given)}" if answer.given else ""
    around = f"{format_time(answer.at)} ± {duration(answer.within_ms)}"
    if answer.fired:
        times = f" {len(answer.fired)} times" if len(answer.fired) > 1 else ""
        verdict: tuple[str, str] = (f"fired{times}", "bold green")
    elif any(one.became == "pending" for one in answer.candidates[:1]):
        verdict = ("has not fired yet", "bold yellow")
    elif any(one.became == "left out" for one in answer.candidates[:1]):
        verdict = ("did not fire again", "bold yellow")
    elif any(note.kind == "told" and note.event for note in answer.notes):
        verdict = ("would not fire by what is on record now", "bold yellow")
    else:
        verdict = ("did not fire", "bold red")
    return Text.assemble((answer.policy, "bold"), " ", verdict, f"{about} around {around}")


def _short(candidate: Candidate) -> Text:
    """Further candidates in a line or two."""
    if candidate.became == "detected" and candidate.detection is not None:
        when = f"  fired too, detected at {format_time(candidate.detection.time)}"
        return Text.assemble((who(candidate.bindings), "bold"), when)
    label = Text.assemble(
        ("\n" + (who(candidate.bindings) or "nobody in particular"), "bold"),
        f"  {_outcome(candidate)}",
    )
    failed = candidate.first_failed
    if failed is not None:
        mark, style = _MARKS[failed.truth]
        label.append(f"\n  {mark} ", style)
        label.append(failed.text)
        label.append(f": {failed.because}" if failed.because else "", "dim")
    return label


def _miss(answer: WhyNotAnswer) -> Text:
    if answer.nearest is not None:
        share = 100 * answer.nearest.relative
        size = f"{share:.2g} %" if share < 100 else "another value"
        size = "less than 0.01 %" if share < 0.01 else size
        return Text.assemble(
            ("Nearest miss: ", "bold"),
            f"{answer.nearest.text}, and it would have fired",
            (f"  (a change of {size}; reading {answer.nearest.reading.id})", "dim"),
        )
    failed = answer.failed
    if failed > 1:
        why = f"{failed} conditions failed; no change of a single value would have been enough"
    else:
        why = "no change of a single value that was read would have been enough"
    return Text.assemble(("Nearest miss: ", "bold"), f"none; {why}")


def why_not(
    policy: Annotated[str, Parameter(help="The policy that was expected to fire.")],
    *who: Annotated[str, Parameter(help="Identities as ALIAS=ID; else those nearest to firing.")],
    at: Annotated[str, Parameter(help="When: ISO 8601, 09:14:05 of today, or 2h ago: 2h.")],
    window: Annotated[str, Parameter(help="How far around; else the policy's window.")] = "",
    events: Annotated[list[str] | None, Parameter(help="Recorded files, or SOURCE=FILE.")] = None,
    recorded: Annotated[
        bool, Parameter(help="From the recorded files that the site names.", negative="")
    ] = False,
    lake: LakeOption = None,
    json: Annotated[bool, Parameter(help="The answer as JSON.", negative="")] = False,
    where: Where = HERE,
    within: Annotated[
        str, Parameter(help="With --url: how long the node may look; else 30 s, at most 5 min.")
    ] = "",
) -> int:
    """Show why a policy did not fire: each condition, who was nearest, what was missing.

    Exits with 1 when it did not fire.
    """
    from rapport.policy.explain.why_not import WhyNotQuestion, given_in

    given = given_in(who)
    question = WhyNotQuestion(
        at=parse_moment(at), given=given, within_ms=parse_duration(window) if window else None
    )
    if where.url is not None:
        remote = where.remote()
        answer = _answer_from_node(
            remote, policy, question, parse_duration(within) if within else 0
        )
    elif within:
        raise wrong_use(
            "--within is about a node that is asked",
            "add --url, or leave out --within: here everything is read to its end",
        )
    else:
        files = [*(events or ())] if recorded or events is not None else None
        answer = answer_here(where.directory, policy, question, files, lake=lake)
    if json:
        write_json(answer)
    else:
        show_answer(stdout(), answer)
    holds = answer.situation is not None and answer.situation.truth == "true"
    return int(not (answer.fired or holds))


def answer_here(
    site: Path,
    policy: str,
    question: WhyNotQuestion,
    events: Sequence[str] | None,
    *,
    lake: str | None = None,
) -> WhyNotAnswer:
    """From recorded files when some are named (an empty list: those the site names), from a lake
    when one is, else from the site's log; beside a running node too.
    """
    from rapport.site.explain import explainer_of, recorded_answer
    from rapport.site.site import load_site

    loaded = load_site(site, refusing_policies=False)
    if events is not None:
        return recorded_answer(loaded, policy, question, events)
    answer, lines = read_history(
        site, lake, lambda channels: explainer_of(loaded, channels).why_not(policy, question)
    )
    notes = (AnswerNote(kind="reach", text=text) for text in lines)
    return msgspec.structs.replace(answer, notes=(*answer.notes, *notes))


def _answer_from_node(
    remote: Remote, policy: str, question: WhyNotQuestion, patience_ms: int
) -> WhyNotAnswer:
    """The answer of a node within so much time; 0: its default."""
    parameters: list[tuple[str, Any]] = [("at", question.at)]
    parameters += [("who", f"{alias}={id}") for alias, id in question.given.items()]
    if question.within_ms is not None:
        parameters.append(("window", f"{question.within_ms}ms"))
    if patience_ms:
        parameters.append(("within", f"{patience_ms}ms"))
    path = f"/policies/{quote(policy, safe='')}/why-not?{urlencode(parameters)}"
    found = remote.get(path, within_ms=patience_ms)
    return msgspec.convert(found, WhyNotAnswer)
