"""`rapport why-not POLICY --at TIME A=5 ...`: why a policy did not fire, on a running node, its
log, a lake, or recorded files. [PO-11]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from cyclopts import Parameter

from rapport.cli.explaining.reading import LakeOption
from rapport.cli.moments import said_moment
from rapport.cli.remote import Remote
from rapport.cli.terminal import stdout, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from rapport.policy.explain.answer import WhyNotAnswer
    from rapport.policy.explain.why_not import WhyNotQuestion


def why_not(
    policy: Annotated[str, Parameter(help="The policy that was expected to fire.")],
    *who: Annotated[str, Parameter(help="ALIAS=ID: for whom; else whoever came nearest.")],
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
        at=said_moment(at), given=given, within_ms=parse_duration(window) if window else None
    )
    if where.url is not None:
        remote = where.remote()
        answer = _ask_there(remote, policy, question, parse_duration(within) if within else 0)
    elif within:
        raise InvalidInput(
            "--within is about a node that is asked",
            code="cli.wrong_use",
            hint="add --url, or leave out --within: here everything is read to its end",
        )
    else:
        files = [*(events or ())] if recorded or events is not None else None
        answer = answer_here(where.directory, policy, question, files, lake=lake)
    if json:
        write_json(answer)
    else:
        from rapport.cli.explaining.text import show_answer

        show_answer(stdout(), answer)
    return int(not answer.fired)


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
    from rapport.cli.explaining.reading import read_history
    from rapport.policy.explain.answer import AnswerNote
    from rapport.site.explain import asking_of, recorded_answer
    from rapport.site.site import load_site

    loaded = load_site(site, refusing_policies=False)
    if events is not None:
        return recorded_answer(loaded, policy, question, events)
    answer, said = read_history(
        site, lake, lambda channels: asking_of(loaded, channels).why_not(policy, question)
    )
    notes = (AnswerNote(kind="reach", text=text) for text in said)
    return msgspec.structs.replace(answer, notes=(*answer.notes, *notes))


def _ask_there(
    remote: Remote, policy: str, question: WhyNotQuestion, patience_ms: int
) -> WhyNotAnswer:
    """What a node says that has so much time to look; 0: as long as it usually takes."""
    from rapport.policy.explain.answer import WhyNotAnswer

    asked: list[tuple[str, Any]] = [("at", question.at)]
    asked += [("who", f"{alias}={id}") for alias, id in question.given.items()]
    if question.within_ms is not None:
        asked.append(("window", f"{question.within_ms}ms"))
    if patience_ms:
        asked.append(("within", f"{patience_ms}ms"))
    path = f"/policies/{quote(policy, safe='')}/why-not?{urlencode(asked)}"
    found = remote.get(path, within_ms=patience_ms)
    return msgspec.convert(found, WhyNotAnswer)
