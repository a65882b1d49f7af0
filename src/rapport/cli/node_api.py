"""The HTTP API of a running node, for commands; uses the standard library only. [UX-3, CH-12,
CH-15]

`NodeAccess` opens the site's node in this process when none runs.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from rapport.channel.access.identities import new_token
from rapport.cli.arguments import SiteOption, site_directory
from rapport.cli.hints import cannot_read
from rapport.core.errors import (
    Conflict,
    InvalidInput,
    Problem,
    RapportError,
    StoreUnavailable,
    Unavailable,
)
from rapport.core.urls import address_parts, without_password
from rapport.kernel.clock import SystemClock
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.kernel.node_identity import NodeIdentity, directory_digest, read_node_id
from rapport.kernel.settings import NodeSettings, load_settings, read_secret
from rapport.kernel.toml import TomlFile

if TYPE_CHECKING:
    from rapport.node.node import Node

JSON = "application/json"
_TIMEOUT_SECONDS = 70
_ON_THE_WAY_SECONDS = 10
_IDENTITY_SECONDS = 10
TOKEN_VARIABLE = "RAPPORT_TOKEN"
UrlOption = Annotated[str | None, Parameter(help="Another node than the site's.")]
TokenFileOption = Annotated[
    Path | None, Parameter(name="--token-file", help=f"Who you are; else ${TOKEN_VARIABLE}.")
]


def read_token(file: Path | None) -> str:
    """The token in a file, or else in $RAPPORT_TOKEN; "" when there is none.

    Raises InvalidInput for one that no request can carry, without showing it.
    """
    if file is None:
        return _one_line(os.environ.get(TOKEN_VARIABLE, "").strip(), f"${TOKEN_VARIABLE}")
    try:
        return _one_line(file.read_text(encoding="utf-8").strip(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        wanted = f"a file that holds a token, or put the token into ${TOKEN_VARIABLE}"
        raise cannot_read(file, error, wanted=wanted) from None


def _one_line(token: str, place: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput(
            f"what stands in {place} is no token",
            code="cli.bad_token",
            hint="a token is one line of letters and digits, as rapport access token makes it",
        )
    return token


PROCESS_FILE = "node.json"


class NodeProcess(msgspec.Struct, frozen=True):
    """A running node, as it describes itself to commands on its machine."""

    pid: int
    url: str
    data: str = ""
    """The node's data directory, absolute; empty from nodes of former releases."""

    def write(self, *directories: Path) -> None:
        """Stores it in each directory; the first, the node's own, must be writable."""
        for number, directory in enumerate(directories):
            with suppress(OSError) if number else nullcontext():
                make_private_directory(directory)
                write_atomically(directory / PROCESS_FILE, msgspec.json.encode(self))

    def remove(self, *directories: Path) -> None:
        """Removes it where it is still this node's."""
        for directory in directories:
            if NodeProcess.read(directory) == self:
                (directory / PROCESS_FILE).unlink(missing_ok=True)

    @staticmethod
    def read(data: Path) -> NodeProcess | None:
        """The process that wrote it, whether it runs or not; None if there is no readable file."""
        try:
            return msgspec.json.decode((data / PROCESS_FILE).read_bytes(), type=NodeProcess)
        except (OSError, msgspec.MsgspecError):
            return None

    @property
    def is_alive(self) -> bool:
        """Whether a process with this number runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return not _is_zombie(self.pid)


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


class NodeRefusal(InvalidInput):
    """What a node refused, with every problem at its place."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(
            str(body.get("detail", "")),
            code=str(body.get("title", "http.refused")),
            hint=str(body.get("hint", "")),
        )
        self.status = status
        self.problems = msgspec.convert(body["problems"], tuple[Problem, ...])

    def problems_found(self) -> tuple[Problem, ...]:
        return self.problems


class Remote:
    """The HTTP API of one node."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        site: Path | None = None,
        expected: NodeIdentity | None = None,
    ) -> None:
        """At `url`; the node of `site`, when it is known whose it is. Before the first request the
        node there has to be the `expected` one; neither token nor body reach another.
        """
        _check_address(url)
        self.url, self.token, self._site = url.rstrip("/"), token, site
        self._expected, self._is_verified = expected, expected is None
        self._opener = _opener(url)

    @staticmethod
    def of_site(
        directory: Path, url: str | None, token_file: Path | None = None, data: str | None = None
    ) -> Remote:
        """The node of the site that runs on this machine, whatever its port, else the one that the
        site's settings speak of; or the one at `url`. `data` is where it keeps its data.

        The token is that of `token_file`, else of $RAPPORT_TOKEN, else the node's own, which is
        sent to no other host. With a `url` and outside of any site none is needed. Without `url`
        the node that answers has to be that of the site.
        """
        if url and directory == Path() and not (directory / "site.toml").exists():
            return Remote(url, read_token(token_file))
        file = TomlFile.load(directory / "site.toml")
        settings = load_settings(file.section("node"), flags={"data": data})
        token = read_token(token_file)
        if not token and settings.token_file and _is_own_host(url, settings):
            secret = read_secret(f"file:{settings.token_file}", directory)
            token = _one_line(secret, settings.token_file)
        if url:
            return Remote(url, token)
        address = settings.public_url or settings.local_url()
        process = NodeProcess.read(directory / settings.data)
        if process is not None and process.is_alive:
            address = process.url
            settings = msgspec.structs.replace(settings, data=process.data or settings.data)
        expected = expected_identity(directory, file, settings)
        return Remote(address, token, site=directory, expected=expected)

    def verify(self) -> None:
        """Raises Conflict unless the node there is the expected one; requests its identity once."""
        if self._is_verified or self._expected is None:
            return
        found = self.identity()
        if not self._expected.is_same(found):
            raise self._other_site(self._expected, found)
        self._is_verified = True

    def identity(self) -> NodeIdentity:
        """Which node of which site answers; asked without a token. Raises Unavailable when nobody
        does, or the answer is not that of a node.
        """
        request = urllib.request.Request(f"{self.url}/identity")
        try:
            with self._exchange(request, _IDENTITY_SECONDS) as answer:
                return msgspec.json.decode(answer.read(), type=NodeIdentity)
        except InvalidInput as error:
            if error.code != "http.not_found":
                raise
            raise Unavailable(
                f"the node at {self.url} cannot say of which site it is: it is of an older version",
                code="node.unidentified",
                hint="restart it with this version, or name it with --url",
            ) from None
        except msgspec.MsgspecError:
            raise self._no_node("the answer is not that of a node") from None

    def _other_site(self, expected: NodeIdentity, found: NodeIdentity) -> Conflict:
        where = f" in {self._site}" if expected.site == found.site else ""
        another = f"another site {found.site!r}" if where else f"the site {found.site!r}"
        return Conflict(
            f"the node at {self.url} is that of {another}, not that of {expected.site!r}{where}",
            code="node.other_site",
            hint=f"start the node of {self._site} on a port of its own ([node] port in its "
            "site.toml), or name the node that is meant with --url",
        )

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        *,
        within_ms: int = 0,
    ) -> Any:
        """Sends a request; returns the decoded answer. Waits longer than usual for a node that was
        given time.
        """
        seconds = max(_TIMEOUT_SECONDS, within_ms / 1_000 + _ON_THE_WAY_SECONDS)
        answer = self._answer_bytes(self._request(method, path, body, content_type), seconds)
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._no_node("the answer is not that of a node") from None

    def get(self, path: str, *, within_ms: int = 0) -> Any:
        return self.call("GET", path, within_ms=within_ms)

    def post(self, path: str, body: bytes) -> Any:
        return self.call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def text(self, path: str) -> str:
        """Returns the answer as it is."""
        return self._answer_bytes(self._request("GET", path)).decode()

    def lines(self, path: str) -> Generator[str]:
        """The lines of an answer that goes on, as they come; ends when the node ends it."""
        with self._opened(self._request("GET", path)) as answer:
            for line in answer:
                yield line.decode().rstrip("\r\n")

    def finish_work(self) -> None:
        """Waits for nothing: a running node finishes its work by itself."""

    def _refused(self, error: urllib.error.HTTPError) -> RapportError:
        """The error in a node's refusal; another program's answer is an error of its own."""
        try:
            body = msgspec.json.decode(error.read(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = {}
        if "title" in body:
            return _as_rapport_error(error.code, body)
        return self._no_node(f"the answer is {error.code} {error.reason}")

    def _no_node(self, why: str) -> Unavailable:
        return Unavailable(
            f"no node answers at {self.url}: {why}",
            code="node.not_one",
            hint="another program may use the port, or a proxy finds no node; name it with --url",
        )

    def _answer_bytes(
        self, request: urllib.request.Request, seconds: float = _TIMEOUT_SECONDS
    ) -> bytes:
        with self._opened(request, seconds) as answer:
            return bytes(answer.read())

    def _request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = JSON
    ) -> urllib.request.Request:
        request = urllib.request.Request(self.url + path, data=body, method=method)
        if body is not None:
            request.add_header("Content-Type", content_type)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        return request

    @contextmanager
    def _opened(
        self, request: urllib.request.Request, seconds: float = _TIMEOUT_SECONDS
    ) -> Iterator[Any]:
        """The answer while the block runs, of the node that is meant and of no other."""
        self.verify()
        with self._exchange(request, seconds) as answer:
            yield answer

    @contextmanager
    def _exchange(self, request: urllib.request.Request, seconds: float) -> Iterator[Any]:
        """The answer while the block runs; raises our own errors."""
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except http.client.IncompleteRead:
            raise Unavailable(
                f"the node at {self.url} went away while it answered",
                code="node.gone",
                hint="its log says why; when it is up again (rapport up), ask again",
            ) from None
        except http.client.HTTPException:  # such as a first line that is not of HTTP
            raise self._no_node("what answers there does not speak HTTP") from None
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            if request.data and isinstance(reason, ConnectionResetError | BrokenPipeError):
                # A node does not read to its end what is too large for it.
                raise Unavailable(
                    f"the node at {self.url} went away during the request",
                    code="node.gone",
                    hint="it may be more than max_body_bytes in its [node] allows",
                ) from None
            raise Unavailable(
                f"no node answers at {self.url}: {getattr(reason, 'strerror', None) or reason}",
                code="node.unreachable",
                hint="is the --url right, and is one up there? rapport up --site DIR starts one"
                if self._site is None
                else f"start it: rapport up --site {self._site}",
            ) from None


def expected_identity(directory: Path, file: TomlFile, settings: NodeSettings) -> NodeIdentity:
    """What the node of a site on this disk answers. Where it runs elsewhere, by its public address,
    and never kept data here, only its site's name is known.
    """
    name = file.section("site").values.get("name")
    node = read_node_id(directory / settings.data)
    is_elsewhere = bool(settings.public_url) and not node
    return NodeIdentity(
        site=name if isinstance(name, str) and name else directory.resolve().name,
        node=node,
        directory="" if is_elsewhere else directory_digest(directory),
    )


def _opener(url: str) -> urllib.request.OpenerDirector:
    """The HTTP opener. A node on this machine is requested directly, whatever $http_proxy is: a
    proxy would look for it on its own machine, and see the token.
    """
    host = urlsplit(url).hostname or ""
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    proxies = urllib.request.ProxyHandler({} if is_here else None)
    return urllib.request.build_opener(proxies)


def _is_own_host(url: str | None, settings: NodeSettings) -> bool:
    """Whether the node is at an address of the site's own, or on this machine."""
    own = [address_parts(own).hostname for own in (settings.local_url(), settings.public_url)]
    return not url or address_parts(url).hostname in (*own, *_THIS_MACHINE)


_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


def _check_address(url: str) -> None:
    """Raises InvalidInput for an address that no request can be sent to."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no number
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_good = False
    whole = url if "//" in url else f"http://{url}"
    if without_password(whole) != whole:
        raise InvalidInput(
            f"the address {without_password(whole)!r} was given with a name or a password",
            code="url.bad",
            hint="say who you are with --token-file or $RAPPORT_TOKEN",
        )
    if not is_good or not (url.isascii() and url.isprintable() and " " not in url):
        raise InvalidInput(
            f"{url!r} is not an http address",
            code="url.bad",
            hint="such as http://127.0.0.1:8484" if whole == url else f"write {whole}",
        )


def _as_rapport_error(status: int, body: dict[str, Any]) -> RapportError:
    is_ours = 400 <= status < 500 and status != 429
    if is_ours and body.get("problems"):
        return NodeRefusal(status, body)
    return (InvalidInput if is_ours else Unavailable)(
        str(body.get("detail", f"the node answered {status}")),
        code=str(body.get("title", "http.refused")),
        hint=str(body.get("hint", "")),
    )


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """`--site`, `--url` and `--token-file` as they were given."""

    site: SiteOption = None
    url: UrlOption = None
    token_file: TokenFileOption = None

    @property
    def directory(self) -> Path:
        return site_directory(self.site)

    def remote(self, data: str | None = None) -> Remote:
        """The API of the node; raises SiteError when the site's settings cannot be read."""
        return Remote.of_site(self.directory, self.url, self.token_file, data)


HERE = Where()
"""Nothing given: the site of $RAPPORT_SITE or of this directory, and its node."""


MOST_AT_ONCE = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Half of a node's default limit for one request."""


def request_bodies(parts: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """JSON arrays of the parts, which are JSON themselves, and how many are in each; one that is
    larger than a request should be goes alone.
    """
    body: list[bytes] = []
    size = 0
    for part in parts:
        if body and (len(body) == MOST_AT_ONCE or size + len(part) > MOST_BYTES):
            yield len(body), _array(body)
            body, size = [], 0
        body.append(part)
        size += len(part)
    if body:
        yield len(body), _array(body)


def _array(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


class RestingNode(Remote):
    """The API of a site's own node where none runs: opened in this process, its endpoints are
    called without a socket, and raise their own errors. Readers are not started.
    """

    def __init__(self, node: Node, runner: asyncio.Runner) -> None:
        from httpx2 import ASGITransport, AsyncClient

        from rapport.web.app import make_app, raise_error

        token = new_token() if node.admission.is_closed() else ""
        super().__init__(node.settings.local_url(), token)
        app: Any = make_app(node, token=token, answer_error=raise_error)
        self._node, self._runner = node, runner
        self._client = AsyncClient(transport=ASGITransport(app), base_url="http://localhost")

    def finish_work(self) -> None:
        """Carries out pending releases, with the second look of policies."""
        self._runner.run(self._node.finish_releases())

    @contextmanager
    def _exchange(self, request: urllib.request.Request, seconds: float) -> Iterator[Any]:
        sending = self._client.request(
            request.get_method(),
            request.selector,
            content=request.data,
            headers=dict(request.header_items()),
        )
        answer = self._runner.run(sending)
        if answer.status_code >= 400:  # of the framework, such as a path that there is not
            raise _as_rapport_error(answer.status_code, answer.json())
        yield BytesIO(answer.content)


@contextmanager
def _resting_node(site: Path, *, record: bool) -> Iterator[RestingNode]:
    """Without `record` nothing is put on record about the site's files: for commands that only
    look.
    """
    from rapport.node.wiring import make_node
    from rapport.site.site import load_site

    loaded = load_site(site, refusing_policies=False)
    settings = load_settings(loaded.file.section("node"), flags={})
    node = make_node(loaded, settings, SystemClock())
    with asyncio.Runner() as runner:
        try:
            runner.run(_begin(node, record))
            yield RestingNode(node, runner)
        finally:
            runner.run(node.stop())


async def _begin(node: Node, record: bool) -> None:
    await node.meanings.begin(record=record)
    await node.fresh_tables.begin(record=record)
    await node.policies.begin(record=record)
    if record:
        await node.fresh_tables.settle()


class NodeAccess:
    """Calls the running node; where none runs, opens the site's own for one call."""

    def __init__(self, where: Where) -> None:
        self._where, self._remote = where, where.remote()
        self.is_resting = False
        """Whether the last answer came from the site's files, since no node runs."""

    def ask(self, ask: Callable[[Remote], Any], *, record: bool) -> Any:
        """The node's answer; with `record` it may change something."""
        try:
            return ask(self._remote)
        except Unavailable as error:
            if self._where.url is not None or error.code != "node.unreachable":
                raise
        self.is_resting = True
        try:
            with _resting_node(self._where.directory, record=record) as node:
                return ask(node)
        except StoreUnavailable as error:
            if error.code == "store.locked":
                error.hint = "its node runs, but not where its site.toml says: name it with --url"
            raise

    def get(self, path: str) -> Any:
        return self.ask(lambda remote: remote.get(path), record=False)

    def change(
        self, method: str, path: str, body: bytes | None = None, content_type: str = JSON
    ) -> Any:
        return self.ask(lambda remote: remote.call(method, path, body, content_type), record=True)
