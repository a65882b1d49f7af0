"""`rapport policy list|register|replace|pause|resume|delete|history|shadow`: policies changed while
events flow. [PO-9]

Goes through the running node; where none runs, the site's files and log are used directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from rapport.cli.door import NodeDoor
from rapport.cli.files import cannot_read
from rapport.cli.policies.told import (
    HEADS,
    line_of,
    row_of,
    say,
    show_problems,
    tell,
    write_data,
    write_rows,
)
from rapport.cli.remote import RefusedThere, Remote
from rapport.cli.terminal import write_bytes, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput, PolicyError
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.node.node import Node
    from rapport.policy.lifecycle.lifecycle import ChangeResult, PolicyLifecycle

JsonOption = Annotated[bool, Parameter(help="As JSON.")]
FileArgument = Annotated[Path, Parameter(help="The policy's text.")]
NameOption = Annotated[str, Parameter(help="Its name; else the stem of the file.")]
Local = Callable[["PolicyLifecycle"], Awaitable[Any]]
_TEXT = "text/plain; charset=utf-8"
_CHECKED = (400, 422)
"""What a node answers when a policy failed its checks."""


def add_to(app: App) -> None:
    """Puts the commands below `rapport policy`."""
    app.command(list_all, name="list")
    for command in (register, replace, pause, resume, delete, history, shadow, reload):
        app.command(command)


def list_all(
    *,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List policies with state, version, and what each did since the node started: readings it
    looked at, situations found, those left undecided because a source was silent, those suppressed
    by `at most once per`, errors, and the milliseconds spent on it.
    """

    async def local(life: PolicyLifecycle) -> Any:
        return life.policies()

    door = NodeDoor(where)
    found = _look(door, "/policies", local)
    if json:
        write_json(found)
        return
    write_rows("policies", HEADS, [row_of(policy) for policy in found])
    for policy in found:
        show_problems(policy)
    if door.is_resting:
        say("no node runs: these would run from its next start on")


def register(
    file: FileArgument,
    *,
    name: NameOption = "",
    where: Where = HERE,
) -> None:
    """Start a policy that is not there yet; it sees what comes from now on."""
    _bring(NodeDoor(where), "register", file, name)


def replace(
    file: FileArgument,
    *,
    name: NameOption = "",
    expects: Annotated[str, Parameter(help="The version that must be in force.")] = "",
    where: Where = HERE,
) -> None:
    """Put another version in the place of a policy; it begins anew."""
    _bring(NodeDoor(where), "replace", file, name, expects)


def pause(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Let a policy see nothing, and forget what it waits for, until it is resumed."""
    _act(NodeDoor(where), name, "pause", lambda life: life.pause(name, by="local"))


def resume(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Let a paused policy begin anew."""
    _act(NodeDoor(where), name, "resume", lambda life: life.resume(name, by="local"))


def delete(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """End a policy; its history stays."""
    path = f"/policies/{quote(name, safe='')}"
    _change(
        NodeDoor(where),
        lambda remote: remote.delete(path),
        lambda life: life.delete(name, by="local"),
    )


def history(
    name: str,
    *,
    diff: Annotated[bool, Parameter(help="With what each version changed.", negative="")] = False,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List the changes of a policy, oldest first: who, when, from which event on."""

    async def local(life: PolicyLifecycle) -> Any:
        return life.history(name)

    path = f"/policies/{quote(name, safe='')}/history"
    found = _look(NodeDoor(where), path, local)
    if json:
        write_json(found)
    elif diff:
        parts = [f"{line_of(one)}\n{one['diff']}" for one in found]
        write_bytes("\n".join(parts).encode())
    else:
        rows = [
            (
                format_time(one["time"]),
                one["what"],
                one["version"],
                one["by"],
                str(one["after"]),
                one["cause"][:12],
            )
            for one in found
        ]
        write_rows("changes", ("time", "what", "version", "by", "after", "because"), rows)


def shadow(
    file: Annotated[Path | None, Parameter(help="The new version's text.")] = None,
    *,
    name: NameOption = "",
    promote: Annotated[bool, Parameter(help="Make it the policy.", negative="")] = False,
    drop: Annotated[bool, Parameter(help="End it.", negative="")] = False,
    where: Where = HERE,
) -> None:
    """Run a new version beside a policy; only what one of them finds alone is told, in
    `detections`. Then promote or drop it.
    """
    door = NodeDoor(where)
    if file is not None and not (promote or drop):
        _bring(door, "shadow", file, name)
    elif promote != drop and (name or file is not None):
        policy = name or str(file and file.stem)
        if promote:
            _act(door, policy, "promote", lambda life: life.promote(policy, by="local"))
        else:
            _act(door, policy, "drop", lambda life: life.drop(policy, by="local"))
    else:
        raise InvalidInput(
            "say what to do about a shadow",
            code="cli.no_shadow",
            hint="FILE starts one; --name NAME with --promote or --drop ends it",
        )


def reload(
    *,
    where: Where = HERE,
) -> None:
    """Have the running node take ontology, tables and policies from the site's files anew."""
    remote = where.remote()
    done = remote.post("/policies", b"{}")
    write_data(done)
    for one in done:
        tell(one)
    if not done:
        say("every policy is as it was")


def _bring(
    door: NodeDoor,
    how: Literal["register", "replace", "shadow"],
    file: Path,
    name: str,
    expects: str = "",
) -> None:
    text, policy = _read(file), name or file.stem
    path = f"/policies/{quote(policy, safe='')}?how={how}&expects={quote(expects, safe='')}"

    async def local(life: PolicyLifecycle) -> ChangeResult:
        if how == "replace":
            return await life.replace(policy, text, by="local", expects=expects)
        bring = life.register if how == "register" else life.shadow
        return await bring(policy, text, by="local")

    _change(door, lambda remote: remote.post(path, text.encode(), _TEXT), local)


def _act(door: NodeDoor, name: str, act: str, local: Local) -> None:
    path = f"/policies/{quote(name, safe='')}/{act}"
    _change(door, lambda remote: remote.post(path, b"{}"), local)


def _change(door: NodeDoor, ask: Callable[[Remote], Any], local: Local) -> None:
    """Makes a change and says what came of it."""
    done = _done(door, ask, local)
    write_data(done)
    tell(done)
    if door.is_resting:
        say("no node runs: it holds from its next start on")


def _done(door: NodeDoor, ask: Callable[[Remote], Any], local: Local) -> Any:
    try:
        return door.ask(ask, _of_node(local), record=True)
    except RefusedThere as refused:
        if refused.status not in _CHECKED or not any(one.line for one in refused.problems):
            raise
        raise PolicyError(refused.problems) from None


def _look(door: NodeDoor, path: str, local: Local) -> Any:
    return door.ask(lambda remote: remote.get(path), _of_node(local), record=False)


def _of_node(local: Local) -> Callable[[Node], Awaitable[Any]]:
    async def work(node: Node) -> Any:
        return await local(node.policies.life)

    return work


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(file, error) from None
