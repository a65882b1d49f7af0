"""`rapport up`, `status`, `stop`, `logs` and `reload`: the node of a site on this machine.
[UX-2, UX-3, UX-5]

A running node writes two files beside its data: `node.json` with its process id and address, and
`node.log` with its log as JSON lines. A node with `--data` leaves a second `node.json` where the
site file has its data, so that commands find it. SIGTERM and Ctrl-C drain the node: endpoints
close, readers finish their batches. SIGKILL loses nothing acknowledged; the next start resumes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.node_api import HERE, NodeProcess, Remote, Where, expected_identity
from rapport.cli.output import print_line, print_note, show_problem, write_json
from rapport.core.errors import Conflict, RapportError, Unavailable
from rapport.core.urls import is_loopback
from rapport.kernel.clock import SystemClock
from rapport.kernel.files import make_private_directory
from rapport.kernel.settings import NodeSettings, load_settings
from rapport.kernel.tasks import pinned_to_cpu
from rapport.kernel.telemetry import LOG_FILE, configure_logs
from rapport.kernel.toml import TomlFile

if TYPE_CHECKING:
    from rapport.kernel.settings import NodeSettings
    from rapport.site.site import Site

_STOP_SECONDS, _LOOK_SECONDS = 60.0, 0.1
_LEVELS = ("debug", "info", "warning", "error", "critical")
Level = Literal["debug", "info", "warning", "error", "critical"]
DataOption = Annotated[
    str | None, Parameter(help="The node's data directory, relative to the site.")
]


def status(*, json: JsonOption = False, data: DataOption = None, where: Where = HERE) -> int:
    """Show whether the site's node runs, and what is wrong with it; 0 if it is ready."""
    remote = where.remote(data)
    try:
        identity, state = remote.identity(), _readiness(remote)
    except Unavailable as error:
        if error.code != "node.unreachable":
            raise
        identity, state = None, {"status": "not running", "reasons": [error.message]}
    if json:
        write_json({"url": remote.url, "site": identity and identity.site, **state})
    else:
        site = f" of site {identity.site}" if identity else ""
        print_line(f"{state['status']}: the node{site} at {remote.url}")
        for reason in state["reasons"]:
            print_line(f"  {reason}")
    return 0 if state["status"] == "ready" else 1


def stop(*, data: DataOption = None, site: SiteOption = None) -> None:
    """Stop the site's node on this machine; returns when it has ended."""
    directory = site_directory(site)
    file, settings = _settings(directory, data)
    process = _running(directory, settings)
    if process is None:
        raise Unavailable(
            f"no node of {directory} runs on this machine",
            code="node.not_running",
            hint="rapport status looks for it at its address",
        )
    # A process number is given anew after a restart of the machine: the node itself must answer.
    if process.data:
        settings = msgspec.structs.replace(settings, data=process.data)
    expected = expected_identity(directory, file, settings)
    if not expected.is_same(Remote(process.url).identity()):
        raise Conflict(
            f"process {process.pid} is not the node of {directory}",
            code="node.other_site",
            hint="rapport status shows the node that answers at the site's address",
        )
    os.kill(process.pid, signal.SIGTERM)
    clock = SystemClock()
    deadline_ns = clock.steady_ns() + int(_STOP_SECONDS * 1e9)
    while process.is_alive:
        if clock.steady_ns() > deadline_ns:
            raise Unavailable(
                f"the node has not ended after {_STOP_SECONDS:.0f} s; it may still be delivering",
                code="node.still_running",
                hint=f"rapport logs says why; kill -9 {process.pid} loses nothing acknowledged",
            )
        time.sleep(_LOOK_SECONDS)
    print_line("stopped")


def logs(
    *,
    last: Annotated[int, Parameter(help="So many of the newest entries.")] = 50,
    level: Annotated[Level, Parameter(help="This level and those above it.")] = "info",
    follow: Annotated[bool, Parameter(alias="-f", help="Go on as they come.", negative="")] = False,
    json: JsonOption = False,
    data: DataOption = None,
    site: SiteOption = None,
) -> None:
    """Show the log of the site's node on this machine."""
    directory = site_directory(site)
    _file, settings = _settings(directory, data)
    process = _running(directory, settings)
    path = directory / (process.data if process and process.data else settings.data) / LOG_FILE
    if not path.exists():
        raise Unavailable(
            f"there is no log at {path}",
            code="node.no_log",
            hint="rapport up writes it beside its data; --data says where that is",
        )
    wanted = _LEVELS[_LEVELS.index(level) :]
    older = path.with_name(f"{LOG_FILE}.1")
    text = path.read_bytes()
    text = text[: text.rfind(b"\n") + 1]  # the rest of an entry may still be written
    lines = [*(_lines(older.read_bytes()) if older.exists() else ()), *_lines(text)]
    shown = [line for line in lines if _level(line) in wanted]
    for line in shown[len(shown) - min(last, len(shown)) :]:
        _show(line, as_json=json)
    if follow:
        for line in _new_lines(path, len(text)):
            if _level(line) in wanted:
                _show(line, as_json=json)


def _running(directory: Path, settings: NodeSettings) -> NodeProcess | None:
    """The node of the site that runs on this machine."""
    process = NodeProcess.read(directory / settings.data)
    return process if process is not None and process.is_alive else None


def _settings(directory: Path, data: str | None = None) -> tuple[TomlFile, NodeSettings]:
    file = TomlFile.load(directory / "site.toml")
    return file, load_settings(file.section("node"), flags={"data": data})


def _readiness(remote: Remote) -> dict[str, Any]:
    try:
        found: dict[str, Any] = remote.get("/readyz")
    except Unavailable as error:
        if error.code != "node.not_ready":
            raise
        found = {"status": "not ready", "reasons": [error.message]}
    return found


def _lines(text: bytes) -> list[dict[str, Any]]:
    return [_entry(line) for line in text.decode("utf-8", "replace").splitlines()]


def _new_lines(path: Path, place: int) -> Iterator[dict[str, Any]]:
    """Entries after a position; a file that was rotated is read from its start."""
    text = b""
    while True:
        time.sleep(_LOOK_SECONDS)
        with suppress(OSError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < place:
                place, text = 0, b""
            file.seek(place)
            text += file.read()
            place = file.tell()
        whole, _, text = text.rpartition(b"\n")
        yield from _lines(whole)


def _entry(line: str) -> dict[str, Any]:
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(line, type=dict[str, Any])
    return {"event": line}  # cut by a crash


def _level(entry: dict[str, Any]) -> str:
    return str(entry.get("level", "info"))


def _show(entry: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(entry)
        return
    rest = {
        key: value for key, value in entry.items() if key not in ("timestamp", "level", "event")
    }
    trace = rest.pop("exception", "")
    values = " ".join(f"{key}={value}" for key, value in rest.items())
    begins = f"{entry.get('timestamp', '')} {_level(entry):8} {entry.get('event', '')}"
    print_line(f"{begins}  {values}".rstrip())
    if trace:
        print_line(str(trace))


def up(
    *,
    site: SiteOption = None,
    host: Annotated[str | None, Parameter(help="Address to listen on.")] = None,
    port: Annotated[int | None, Parameter(help="Port to listen on; 0 takes a free one.")] = None,
    data: DataOption = None,
    log_json: Annotated[bool, Parameter(help="Logs as JSON lines.")] = False,
    processor: Annotated[
        int | None,
        Parameter(
            help="Hold the node on this processor, counted from 0, but for its indexes: faster "
            "where little else runs there."
        ),
    ] = None,
) -> None:
    """Run a node: endpoints, mediation, policies, deliveries."""
    import uvloop

    from rapport.channel.access.identities import read_node_token
    from rapport.site.site import load_site

    os.umask(0o077)  # what a node writes is its owner's, whichever part writes it
    configure_logs(json=log_json)
    _raise_descriptor_limit()
    directory = site_directory(site)
    loaded = load_site(
        directory,
        refusing_policies=False,
        data_directory=None if data is None else directory / data,
    )
    for fault in loaded.faults:
        show_problem(fault)
    flags = {"host": host, "port": port, "data": data}
    settings = load_settings(loaded.file.section("node"), flags=flags)
    token = read_node_token(settings.token_file, loaded.directory)
    make_private_directory(loaded.data_directory)
    configure_logs(json=log_json, directory=loaded.data_directory)
    with nullcontext() if processor is None else pinned_to_cpu(processor):
        uvloop.run(_serve(loaded, settings, token))


async def _serve(loaded: Site, settings: NodeSettings, token: str) -> None:
    from rapport.node.wiring import make_node
    from rapport.web.app import serving
    from rapport.web.browser_sessions import LoginLinks

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    node = make_node(loaded, settings, SystemClock())
    declared = loaded.directory / load_settings(loaded.file.section("node"), flags={}).data
    places = dict.fromkeys((loaded.data_directory.resolve(), declared.resolve()))
    process = NodeProcess(os.getpid(), "", str(loaded.data_directory.resolve()))
    try:
        links = LoginLinks(node.clock)
        async with serving(node, token=token, links=links) as url:
            await node.start()
            _settle()
            process = msgspec.structs.replace(process, url=url)
            await asyncio.to_thread(process.write, *places)
            print_note(f"rapport is up: {url}  (stop with Ctrl-C)")
            if is_loopback(settings.host) and (token or node.admission.is_closed()):
                # Whoever reads this terminal runs the node; the first visit needs no set-up.
                print_note(f"log in once with: {url}/login/{links.make()}")
            await stop.wait()
    except Unavailable as error:
        if error.code != "web.cannot_listen":
            raise
        raise await asyncio.to_thread(_port_taken, settings, error) from None
    finally:
        await node.stop()
        await asyncio.to_thread(process.remove, *places)


def _port_taken(settings: NodeSettings, error: Unavailable) -> Unavailable:
    """Says whose the port is, where that is the node of a site."""
    from rapport.cli.node_api import Remote

    try:
        found = Remote(settings.local_url()).identity()
    except RapportError:
        return error  # another program's
    return Unavailable(
        f"cannot listen on {settings.host}:{settings.port}: the port is taken by the node of the "
        f"site {found.site!r}",
        code=error.code,
        hint="give this site a port of its own: port in [node] of its site.toml, or --port",
    )


def _raise_descriptor_limit() -> None:
    """Lets the process open as many files and connections as the system allows it; a shell gives
    less by default.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system that gives the limit and then refuses it (macOS does) leaves the node as it was.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle() -> None:
    """Excludes the objects of the started node from garbage collection: searching them again and
    again would cost a twelfth of the work of taking in events.
    """
    gc.collect()
    gc.freeze()


def reload(*, json: JsonOption = False, where: Where = HERE) -> None:
    """Have the running node take people, actions, sources, interpretations, tables, ontology and
    policies from the site's files anew; with a fault anywhere nothing changes.
    """
    done = where.remote().post("/reload", b"{}")
    if json:
        write_json(done)
        return
    lines = list(lines_of(done))
    for line in lines or ["everything is as it was"]:
        print_line(line)
    for warning in done["warnings"]:
        print_note(f"warning: {warning}")


def lines_of(done: Any) -> Iterator[str]:
    yield from done["people"]
    for kind in ("action", "source", "interpretation"):
        for name in done[f"{kind}s"]:
            yield f"{kind} {name} changed"
    for one in done["policies"]:
        yield f"policy {one['name']} {one['what']}"
