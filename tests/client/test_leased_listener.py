"""Workers that share a channel of a real node: docs/how-to/work-queue.md does what it says, and
what is killed loses nothing. [CH-2, CH-7]
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.client import AsyncLeasedListener, LeasedEvent, LeasedListener, Listener, Publisher
from rapport.core.errors import InvalidInput, StoreUnavailable, Unavailable
from rapport.scenarios.json_client import post_json
from support.processes.javascript import node_program
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE, CLIENT = ROOT / "docs" / "how-to" / "work-queue.md", ROOT / "clients" / "javascript"
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
HERE = "http://127.0.0.1:8484"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests; each has a channel of its own."""
    site = tmp_path_factory.mktemp("site")
    (site / "site.toml").write_text(SITE)
    with NodeProcess(site) as running:
        running.start()
        yield running


def url_of(node: NodeProcess) -> str:
    assert node.doors is not None
    return "http://{}:{}".format(*node.doors)


def give_work(node: NodeProcess, tmp_path: Path, count: int, channel: str = "jobs") -> None:
    with Publisher(tmp_path / "outbox", url_of(node), channel=channel, source="shop") as shop:
        for number in range(1, count + 1):
            shop.publish(type="job", id=str(number), data={"print": f"invoice {number}"})
        assert shop.flush(20)


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def numbers(jobs: list[LeasedEvent]) -> list[int]:
    return [int(job.event.id) for job in jobs]


def test_the_worker_of_the_page_does_all_work_in_any_language(
    node: NodeProcess, tmp_path: Path
) -> None:
    give_work(node, tmp_path, 7)
    script = block("javascript").replace(HERE, url_of(node))
    script = script.replace("./clients/javascript", CLIENT.as_uri())
    command = [node_program(), "--input-type=module", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [f"invoice {number} 1" for number in range(1, 6)], done
    worker = block("python").replace(HERE, url_of(node)).replace("timeout=10", "timeout=0.1")
    assert len(worker.splitlines()) <= 11
    done = subprocess.run(
        [sys.executable, "-c", worker], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["invoice 6 1", "invoice 7 1"], done
    request, acks = (json.loads(text) for text in re.findall(r"-d '(.*)'", block("sh")))
    request["wait_ms"] = 0
    jobs = f"{url_of(node)}/channels/jobs"
    assert asyncio.run(post_json(f"{jobs}/requests", request))["events"] == []
    assert asyncio.run(post_json(f"{jobs}/acks", acks))["stale"] == acks["ack"]


def test_what_a_dead_worker_had_another_gets_and_what_was_acked_nobody(
    node: NodeProcess, tmp_path: Path
) -> None:
    give_work(node, tmp_path, 4, "shared")
    with LeasedListener(url_of(node), "shared", lease=1.0) as dies:
        one, two = dies.pull(2, timeout=20)
        assert dies.ack(one) is True
    with Listener.leased(url_of(node), "shared", lease=60.0) as lives:
        found = lives.pull(3, timeout=20)
        while len(found) < 3:
            found += lives.pull(3, timeout=20)
        assert sorted(numbers(found)) == [2, 3, 4]
        assert {job.event.id: job.tries for job in found}["2"] == 2
        assert lives.ack(two) is False  # of the lease that ended
        assert lives.ack(*found) is True
        assert lives.pull(3, timeout=1.5) == []
        with pytest.raises(InvalidInput):
            lives.pull(0)
    with pytest.raises(StoreUnavailable):
        lives.pull()


def test_a_callback_that_raises_has_the_message_tried_again_and_then_dead_lettered(
    node: NodeProcess, tmp_path: Path
) -> None:
    give_work(node, tmp_path, 2, "failing")
    tried: list[int] = []
    is_over = threading.Event()

    def handle(job: LeasedEvent) -> None:
        tried.append(int(job.event.id))
        if tried.count(1) == 2 and 2 in tried:
            is_over.set()
        if job.event.id == "1":
            raise ValueError("no paper")

    with LeasedListener(url_of(node), "failing", max_tries=2) as worker:
        worker.push(handle, retry_after=0.01)
        assert is_over.wait(30)
        with pytest.raises(InvalidInput):
            worker.push(handle)
    letters = f"{url_of(node)}/channels/dead_letters/requests"
    wanted = {"query": "data.channel = 'failing'", "wait_ms": 10_000}
    (letter,) = asyncio.run(post_json(letters, wanted))["events"]
    assert letter["data"]["message"] == "ValueError: no paper"
    assert sorted(tried) == [1, 1, 2]


def test_a_renewed_lease_outlasts_its_first_end(node: NodeProcess, tmp_path: Path) -> None:
    give_work(node, tmp_path, 2, "renewed")
    with LeasedListener(url_of(node), "renewed", lease=1.0) as slow:
        long, short = slow.pull(2, timeout=20)
        assert slow.renew(long, lease=60.0) is True
        assert slow.renew(long) is True  # never shortens
        with LeasedListener(url_of(node), "renewed", lease=60.0) as other:
            (again,) = other.pull(2, timeout=20)
            assert (again.event.id, again.tries) == (short.event.id, 2)
            assert slow.renew(short) is False  # another worker has it
        assert slow.ack(long) is True
        with pytest.raises(Unavailable) as refused:
            slow.renew(long, lease=0.0)
        assert refused.value.code == "request.bad_field"


def test_an_event_loop_works_beside_others_and_a_cancelled_pull_loses_nothing(
    node: NodeProcess, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with AsyncLeasedListener(url_of(node), "awaited", lease=60.0, max_tries=2) as worker:
            waiting = asyncio.create_task(worker.pull(2, timeout=20))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(give_work, node, tmp_path, 3, "awaited")
            jobs = await worker.pull(3, timeout=20)
            while len(jobs) < 3:
                jobs += await worker.pull(3, timeout=20)
            assert sorted(numbers(jobs)) == [1, 2, 3]
            assert await worker.renew(*jobs) is True
            assert await worker.ack(*jobs[1:]) is True
            assert await worker.nak(jobs[0], error="later") is True
            assert worker.trouble is None
            handled: asyncio.Future[LeasedEvent] = asyncio.get_running_loop().create_future()

            async def handle(job: LeasedEvent) -> None:
                await asyncio.sleep(0)
                handled.set_result(job)

            await worker.push(handle)
            job = await asyncio.wait_for(handled, 20)
            assert (job.event.id, job.tries) == (jobs[0].event.id, 2)
        with pytest.raises(StoreUnavailable):
            await worker.pull()

    asyncio.run(scenario())


def test_closing_ends_a_pull_whose_caller_was_cancelled(node: NodeProcess) -> None:
    async def scenario() -> None:
        async with AsyncLeasedListener(url_of(node), "idle") as worker:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worker.pull(timeout=None), 0.05)

    asyncio.run(asyncio.wait_for(scenario(), 20))


SHARE = """
const worker = new LeasedListener({ url: args[0], channel: args[1], leaseMs: 60_000, maxTries: 2 });
const tried = [];
const [first] = await worker.pull({ waitMs: 10_000 });
tried.push([first.event.id, first.tries]);
const renewed = await worker.renew(first, { leaseMs: 90_000 });
const returned = await worker.nak(first, { error: "later" });
const isStale = await worker.ack(first);
await new Promise((resolve) => {
  worker.run(async (job) => {
    tried.push([job.event.id, job.tries]);
    if (tried.length === 3) resolve();
    if (job.event.id === "1") throw new TypeError("no paper");
  }, { retryAfterMs: 10 });
});
await worker.close();
console.log(JSON.stringify({ tried, renewed, returned, isStale, trouble: worker.trouble }));
"""


def test_a_javascript_worker_acks_gives_back_and_is_told_what_is_stale(
    node: NodeProcess, tmp_path: Path
) -> None:
    give_work(node, tmp_path, 2, "script")
    script = f"import {{ LeasedListener }} from '{CLIENT.as_uri()}/leased-listener.mjs';\n"
    script += f"const args = {json.dumps([url_of(node), 'script'])};\n{SHARE}"
    command = [node_program(), "--input-type=module", "-e", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tried"] == [["1", 1], ["1", 2], ["2", 1]]
    assert (told["renewed"], told["returned"], told["isStale"], told["trouble"]) == (
        True,
        True,
        False,
        None,
    )
    letters = f"{url_of(node)}/channels/dead_letters/requests"
    wanted = {"query": "data.channel = 'script'", "wait_ms": 10_000}
    (letter,) = asyncio.run(post_json(letters, wanted))["events"]
    assert letter["data"]["message"] == "TypeError: no paper"


def test_a_node_killed_again_and_again_loses_no_work_and_repeats_none_that_was_acked(
    node: NodeProcess, tmp_path: Path
) -> None:
    give_work(node, tmp_path, 60, "killed")
    acked: set[int] = set()
    unsure: set[int] = set()
    for round_number in range(2):
        killing = threading.Timer(0.3 + 0.2 * round_number, node.kill)
        worker = LeasedListener(url_of(node), "killed", lease=1.0, max_tries=100, request_seconds=5)
        killing.start()
        _work_until_gone(worker, acked, unsure)
        killing.join()
        worker.close()
        node.start()
    with LeasedListener(url_of(node), "killed", lease=60.0, max_tries=100) as worker:
        while jobs := worker.pull(10, timeout=5):
            for job in jobs:
                assert int(job.event.id) not in acked
                assert worker.ack(job)
                acked.add(int(job.event.id))
    assert acked | unsure == set(range(1, 61))


def _work_until_gone(worker: LeasedListener, acked: set[int], unsure: set[int]) -> None:
    """Until the node is killed; an ack that was not answered may count or not."""
    while True:
        jobs = worker.pull(3, timeout=0)
        if worker.trouble is not None:
            return
        for job in jobs:
            number = int(job.event.id)
            assert number not in acked
            try:
                if worker.ack(job):
                    acked.add(number)
            except Unavailable:
                unsure.add(number)
                return
            threading.Event().wait(0.02)


def test_a_worker_without_the_right_is_told_so(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    rights = '[access.local]\npublish = ["jobs"]\nsubscribe = ["jobs"]\n'
    (site / "site.toml").write_text(f"{SITE}\n{rights}")
    with NodeProcess(site) as node:
        node.start()
        with LeasedListener(url_of(node), "jobs") as worker:
            with pytest.raises(Unavailable) as refused:
                worker.pull()
            assert refused.value.code == "access.no_right"
