"""`rapport mediate`: look at interpretations, check changes, make them. [ME-6, ME-7, ME-12]

Goes through the running node; where none runs, the site's files and log are used directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from rapport.cli.door import NodeDoor
from rapport.cli.files import cannot_read
from rapport.cli.remote import RefusedThere, Remote
from rapport.cli.terminal import show_problem, stderr, write_bytes, write_json, write_table
from rapport.cli.where import HERE, Where
from rapport.core.errors import InterpretationError, InvalidInput, Problem
from rapport.core.times import format_time

if TYPE_CHECKING:
    from rapport.mediation.interpretations.change_requests import ChangeRequest, FileAction
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.node.node import Node

app = App(name="interpretation", help="Look at interpretations; declare, augment, replace, remove.")

FileArgument = Annotated[
    Path, Parameter(help="Declarations (.toml, .yaml, .xml), or changes as .json.")
]
JsonOption = Annotated[bool, Parameter(help="As JSON.")]
_CHECKED = (409, 422)
"""What a node answers when a change failed its checks."""
_MEDIA = {
    ".json": "application/json",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".xml": "application/xml",
}


@app.command(name="list")
def list_all(
    *,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List what is in force with parents and versions, and what is refused."""

    async def local(node: Node) -> Any:
        from rapport.mediation.interpretations.views import overview

        updating = node.meanings.updating
        outcomes = [outcome for _, outcome in updating.history()]
        return await updating.inspect(lambda standing: overview(standing, outcomes))

    found = _Door(where).look("/interpretations", local)
    if json:
        write_json(found)
        return
    rows = [
        (row["name"], row["form"], row["parent"], row["stamp"], row["format"])
        for row in found["interpretations"]
    ]
    write_table("interpretations", ("name", "form", "parent", "version", "format"), rows)
    for refused in found["refused"]:
        for problem in refused["problems"]:
            show_problem(msgspec.convert(problem, Problem))


@app.command
def show(
    name: Annotated[str, Parameter(help="A name, or NAME@VERSION for one that was in force.")],
    *,
    type: Annotated[str, Parameter(help="Print the generated Python for this type.")] = "",
    direction: Annotated[Literal["in", "out"], Parameter(help="Received or sent.")] = "in",
    where: Where = HERE,
) -> None:
    """Show one interpretation as JSON: what it says and what it inherits."""

    async def local(node: Node) -> Any:
        from rapport.mediation.interpretations.change_log import read_version
        from rapport.mediation.interpretations.views import interpretation_view, transformer_text

        if "@" in name:
            return await read_version(node.channels, name)

        def find(in_force: ActiveInterpretations) -> Any:
            return (
                transformer_text(in_force, name, type, direction)
                if type
                else interpretation_view(in_force, name)
            )

        return await node.meanings.updating.inspect(lambda standing: find(standing.in_force))

    path = f"/interpretations/{quote(name, safe='/@')}"
    if type:
        path += f"/transformers/{quote(type, safe='/')}?direction={direction}"
    found = _Door(where).look(path, local, text=bool(type))
    if isinstance(found, str):
        write_bytes(found.encode())
    else:
        write_json(found)


@app.command
def check(
    file: FileArgument,
    *,
    how: Annotated[
        Literal["declare", "augment", "replace"], Parameter(help="As what.")
    ] = "declare",
    old: Annotated[str, Parameter(help="The type of root to be replaced.")] = "",
    where: Where = HERE,
) -> None:
    """Say what a change would do; nothing is changed."""
    _change(_Door(where), _from_file(file), how, old, do=False)


@app.command
def declare(
    file: FileArgument,
    *,
    where: Where = HERE,
) -> None:
    """Declare interpretations, new ones or known ones anew; all of the file or none."""
    _change(_Door(where), _from_file(file), "declare")


@app.command
def augment(
    file: FileArgument,
    *,
    where: Where = HERE,
) -> None:
    """Add what the file says to interpretations (often root); those below inherit it."""
    _change(_Door(where), _from_file(file), "augment")


@app.command
def replace(
    old: Annotated[str, Parameter(help="The type of root that gives way.")],
    file: FileArgument,
    *,
    where: Where = HERE,
) -> None:
    """Replace a type of root by the one in the file; its conversions are named forth and back."""
    _change(_Door(where), _from_file(file), "replace", old)


@app.command
def remove(
    name: str,
    *,
    where: Where = HERE,
) -> None:
    """Take an interpretation away that no source speaks and none descends from."""
    body = msgspec.json.encode({"type": "remove", "name": name})
    _change(_Door(where), _Said("remove", body, ".json"), "declare")


@app.command
def history(
    *,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List all changes, oldest first, and what became of each."""

    async def local(node: Node) -> Any:
        from rapport.mediation.interpretations.views import change_view

        return [change_view(*each) for each in node.meanings.updating.history()]

    found = _Door(where).look("/interpretations/changes", local)
    if json:
        write_json(found)
        return
    rows = [
        (format_time(row["time"]), ", ".join(row["what"]), row["state"], row["by"], row["id"][:12])
        for row in found
    ]
    write_table("changes", ("time", "what", "state", "by", "id"), rows)


@app.command
def shared(
    *,
    json: JsonOption = False,
    where: Where = HERE,
) -> None:
    """List what is shared by gossip: in force, wanted or refused, and where it arose."""

    async def local(node: Node) -> Any:
        return node.ensemble.status() if node.ensemble is not None else {"interpretations": []}

    found = _Door(where).look("/ensemble", local)["interpretations"]
    if json:
        write_json(found)
        return
    rows = [
        (row["name"], row["state"], row["origin"], format_time(row["since_ms"]), row["version"])
        for row in found
    ]
    write_table("shared by gossip", ("name", "state", "from", "since", "version"), rows)
    for row in found:
        for problem in row["problems"]:
            show_problem(msgspec.convert(problem, Problem))


class _Said(msgspec.Struct, frozen=True):
    """A change as somebody wrote it."""

    name: str
    body: bytes
    suffix: str


def _from_file(file: Path) -> _Said:
    suffix = file.suffix.lower()
    if suffix not in _MEDIA:
        hint = f"files end in {', '.join(_MEDIA)}"
        raise InvalidInput(f"{file} is no file of changes", code="cli.unknown_form", hint=hint)
    try:
        return _Said(file.name, file.read_bytes(), suffix)
    except OSError as error:
        raise cannot_read(file, error) from None


class _Door:
    """The node of a site: the running one over HTTP, else opened here."""

    def __init__(self, where: Where) -> None:
        self._node = NodeDoor(where)

    def look(
        self, path: str, local: Callable[[Node], Awaitable[Any]], *, text: bool = False
    ) -> Any:
        """What a door says, or what is found here."""

        def ask(remote: Remote) -> Any:
            return remote.text(path) if text else remote.get(path)

        return self._node.ask(ask, local, record=False)

    def post(self, path: str, said: _Said, local: Callable[[Node], Awaitable[Any]]) -> Any:
        """What came of a change."""
        media = _MEDIA[said.suffix]
        try:
            return self._node.ask(
                lambda remote: remote.post(path, said.body, media), local, record=True
            )
        except RefusedThere as refused:
            if refused.status not in _CHECKED:
                raise
            raise InterpretationError(refused.problems) from None


def _change(door: _Door, said: _Said, how: FileAction, old: str = "", *, do: bool = True) -> None:
    from rapport.mediation.interpretations.change_requests import (
        request_from_file,
        request_from_json,
    )

    def want(in_force: ActiveInterpretations) -> ChangeRequest:
        if said.suffix == ".json":
            return request_from_json(said.body)
        kind: Any = {".yml": "yaml"}.get(said.suffix, said.suffix[1:])
        return request_from_file(said.name, said.body, kind, in_force, how=how, old=old)

    async def local(node: Node) -> Any:
        updating = node.meanings.updating
        return await (updating.change(want, by="local") if do else updating.try_out(want))

    asked = "" if said.suffix == ".json" else f"?how={how}&old={quote(old, safe='')}"
    done = door.post(f"/interpretations/{'changes' if do else 'check'}{asked}", said, local)
    for problem in done["problems"]:
        show_problem(msgspec.convert(problem, Problem))
    write_json(done)
    names = [stamp or f"{name} (removed)" for name, stamp in done["versions"].items()]
    verb = "changed" if do else "would change"
    stderr().print(f"{verb}: {', '.join(names) or 'nothing'}", highlight=False)
