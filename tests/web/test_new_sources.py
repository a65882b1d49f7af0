"""Sources added from a sample over HTTP, by whom, and taken back. [CN-6]"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest

from rapport.cli.main import run as command
from support.freezer_site import TOKEN
from web.conftest import NodeApi
from web.test_policy_editor import cold_store
from web.test_site import served, token_of

CSV = b"""box_id,when,temp_degC,rh (%)
a,2026-03-02T20:00:00Z,-18.5,40
a,2026-03-02T20:05:00Z,-17.5,41
b,2026-03-02T20:05:00Z,-19.5,42
"""


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def sample(raw: bytes = CSV, **more: Any) -> dict[str, Any]:
    return {"sample": b64encode(raw).decode(), **more}


def site_file(api: NodeApi) -> bytes:
    return (api.node.site.directory / "site.toml").read_bytes()


def test_a_sample_is_guessed_written_read_and_taken_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            before = site_file(api)
            body = sample(origin="boxes.csv")
            guessed = await api.call("POST", "/site/sources/guess", {**body, "name": "boxes"})
            assert guessed.status == 200
            draft = guessed.json()
            assert (draft["concept"], draft["questions"], draft["problems"]) == ("freezer", [], [])
            assert draft["readings"][0]["key"] == "a"
            assert site_file(api) == before, "a guess changes nothing"
            written = (await api.call("PUT", "/site/sources/boxes", body)).json()
            assert (written["sources"], written["in_force"]) == (["boxes"], True)
            assert site_file(api) == before + b"\n" + _written(written["text"], site_file(api))
            posted = await api.call("POST", "/sources/boxes", CSV, {"Content-Type": "text/csv"})
            assert posted.status == 200
            assert await api.values("freezer.temperature", 3) == [-18.5, -17.5, -19.5]
            added = (await api.call("GET", "/site/sources")).json()
            assert added == {"sources": ["boxes"]}
            assert (await api.call("PUT", "/site/sources/boxes", body)).status == 409
            assert (await api.call("DELETE", "/site/sources/boxes")).status == 200
            assert site_file(api) == before
            assert (await api.call("POST", "/sources/boxes", CSV)).status == 404
            assert (await api.call("DELETE", "/site/sources/boxes")).status == 404

    run(scenario)


def test_the_command_has_a_running_node_take_the_source_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "boxes.csv"
    file.write_bytes(CSV)

    async def scenario() -> None:
        async with cold_store(tmp_path / "site") as api:
            where = ["--site", str(api.node.site.directory), "--url", api.url]
            assert await asyncio.to_thread(command, ["add", str(file), *where]) == 0
            assert "the node has it" in capsys.readouterr().out
            posted = await api.call("POST", "/sources/boxes", CSV, {"Content-Type": "text/csv"})
            assert posted.status == 200
            assert await api.values("freezer.temperature", 3) == [-18.5, -17.5, -19.5]
            assert await asyncio.to_thread(command, ["add", "--undo", "boxes", *where]) == 0
            assert (await api.call("POST", "/sources/boxes", CSV)).status == 404
            # A new concept is known to a node from its next start on.
            new = ["add", str(file), "--concept", "crate", *where]
            assert await asyncio.to_thread(command, new) == 0
            assert "counts when the node is started again" in capsys.readouterr().out

    run(scenario)


def _written(text: str, file: bytes) -> bytes:
    """The part as it stands in the file: its first line also has a digest."""
    first, _, rest = text.partition("\n")
    [line] = [one for one in file.decode().splitlines() if one.startswith(first)]
    return f"{line}\n{rest}".encode()


def test_what_nobody_said_is_asked_and_nothing_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            before = site_file(api)
            raw = b"when,temp\n2026-03-02 20:00,21.5\n2026-03-02 20:05,22.5\n"
            body = sample(raw, choices={"concept": "garden"})
            draft = (await api.call("POST", "/site/sources/guess", body)).json()
            kinds = [(one["kind"], one["likely"]) for one in draft["questions"]]
            assert ("identity", "") in kinds
            assert ("unit", "degC") in kinds
            refused = await api.call("PUT", "/site/sources/garden", body)
            assert (refused.status, refused.json()["title"]) == (400, "source.no_identity")
            assert site_file(api) == before
            likely = await api.call("PUT", "/site/sources/garden", {**body, "takes_likely": True})
            assert likely.status == 200
            [problem] = likely.json()["restart"]
            assert not likely.json()["in_force"]
            assert "garden.temperature" in problem["message"], "a new concept needs a start"
            assert b"[sources.garden]" in site_file(api)
            back = await api.call("DELETE", "/site/sources/garden")
            assert (back.status, back.json()["restart"], site_file(api)) == (200, [], before)

    run(scenario)


def test_only_an_editor_may_look_at_samples_and_write(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path, closed=True) as api:
            before = site_file(api)
            gateway = {"Authorization": f"Bearer {TOKEN}"}
            calls = (
                ("POST", "/site/sources/guess"),
                ("POST", "/site/sources/listen"),
                ("GET", "/site/sources"),
                ("PUT", "/site/sources/boxes"),
                ("DELETE", "/site/sources/boxes"),
            )
            for method, path in calls:
                body = None if method in ("GET", "DELETE") else sample()
                assert (await api.call(method, path, body)).status == 401
                assert (await api.call(method, path, body, gateway)).status == 403
            assert site_file(api) == before

    run(scenario)


def test_only_an_administrator_has_the_node_connect_to_an_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as api:
            editor = {"Authorization": f"Bearer {token_of('editor')}"}
            heard = {
                "broker": "mqtt://127.0.0.1:1",
                "password": "env:HOME",
                "subscription": "a/{device}",
                "packets": [{"topic": "a/b", "payload": "MQ=="}],
            }
            for path, body in (
                ("/site/sources/listen", {"address": "http://127.0.0.1:1/"}),
                ("/site/sources/guess", {"heard": heard, "name": "z"}),
            ):
                assert (await api.call("POST", path, body, editor)).status == 403
            guessed = await api.call("POST", "/site/sources/guess", sample(), editor)
            assert guessed.status == 200

    run(scenario)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"address": "ftp://127.0.0.1/x"}, 400),
        ({"address": "mqtt://ana:secret@127.0.0.1/x"}, 400),
        ({"address": "mqtt://127.0.0.1/x", "password": "said"}, 400),
        ({"address": "mqtt:///x"}, 400),
        ({"address": "mqtt://127.0.0.1/a/#/b"}, 400),
        ({"address": "http://127.0.0.1:1/"}, 400),
        ({"address": "mqtt://127.0.0.1:1/#", "seconds": 0.2}, 400),
        ({"address": "mqtt://127.0.0.1:1/#", "seconds": 61}, 400),
        ({"address": "http://[", "seconds": 1}, 400),
        ({}, 400),
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(
    tmp_path: Path, body: dict[str, Any], status: int
) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            answer = await api.call("POST", "/site/sources/listen", body)
            assert answer.status == status
            assert b"secret" not in answer.body

    run(scenario)


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ({}, 200),
        ({"password": "said"}, 400),
        ({"broker": "mqtt://ana:said@127.0.0.1"}, 400),
        ({"broker": "nonsense"}, 400),
        ({"broker": 'mqtt://h"\n[node]\nport=1'}, 400),
        ({"subscription": "a/#/b"}, 400),
        ({"packets": []}, 400),
        ({"packets": [{"topic": "", "payload": ""}]}, 400),
    ],
)
def test_messages_of_a_broker_that_cannot_be_used_leave_the_file_as_it_is(
    tmp_path: Path, what: dict[str, Any], status: int
) -> None:
    heard = {
        "broker": "mqtt://127.0.0.1:1",
        "subscription": "a/{device}/humidity",
        "packets": [{"topic": "a/b/humidity", "payload": "NDA="}],
    }

    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            before = site_file(api)
            body = {"heard": heard | what, "takes_likely": True}
            assert (await api.call("PUT", "/site/sources/z", body)).status == status
            assert (site_file(api) == before) is (status != 200)
            assert b"said" not in site_file(api)

    run(scenario)


def test_the_document_at_an_address_is_a_sample(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            directory = tmp_path / "web"
            directory.mkdir()
            (directory / "boxes.csv").write_bytes(CSV)
            with web_server(directory) as url:
                where = {"address": f"{url}/boxes.csv"}
                found = (await api.call("POST", "/site/sources/listen", where)).json()["sources"]
            assert b64decode(found[0]["sample"]) == CSV

    run(scenario)


@contextmanager
def web_server(directory: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({"sample": "no base64!"}, 400),
        ({"samples": ""}, 400),
        (sample(b""), 400),
        (sample(Random(1).randbytes(4_000)), 400),
        (sample(b"PAR1" + b"\0" * 100), 400),
        (sample(b"x" * (2 * 1024 * 1024)), 400),
        (sample(b"x" * (10 * 1024 * 1024)), 413),
        (sample(b"[" * 100_000), 400),
        (sample(CSV, format="morse"), 404),
        (sample(CSV, choices={"key": "nowhere"}), 404),
        (sample(CSV, choices={"concept": "<b>"}), 400),
        (sample(CSV, choices={"zone": "../../etc/passwd"}), 400),
    ],
)
def test_bad_samples_are_refused_and_the_file_stays(tmp_path: Path, body: Any, status: int) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            before = site_file(api)
            for method, path in (("POST", "/site/sources/guess"), ("PUT", "/site/sources/x")):
                answer = await api.call(method, path, body)
                assert (answer.status, answer.headers["content-type"]) == (
                    status,
                    "application/problem+json",
                )
            assert site_file(api) == before

    run(scenario)


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            header = "x_id,<script>alert(1)</script> (°C),when"
            raw = f"{header}\n<b>,1.5,2026-03-02T20:00Z\n<b>,2.5,2026-03-02T20:05Z\n".encode()
            body = sample(raw, origin="<img>\n[access]\n", choices={"concept": "tag"})
            answer = await api.call("PUT", "/site/sources/%3Cb%3E%0A%5Baccess%5D", body)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
            assert "access" not in api.node.site.file.values
            [name] = answer.json()["sources"]
            assert name.isascii()
            assert "<" not in name

    run(scenario)


def test_a_site_that_the_node_cannot_take_over_is_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            path = api.node.site.directory / "site.toml"
            path.write_bytes(path.read_bytes() + b"\n[node]\nport = 1\n")
            before = path.read_bytes()
            refused = await api.call("PUT", "/site/sources/boxes", sample())
            assert refused.status == 400
            assert refused.json()["problems"][0]["code"] == "reload.needs_restart"
            assert path.read_bytes() == before

    run(scenario)
