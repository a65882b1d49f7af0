"""The JavaScript publisher: the same promises as the Python one, on a real node. [CH-5, CH-12]"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rapport.kernel.clock import Chance
from support.examples import examples
from support.processes.javascript import node_program
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
CHILD = Path(__file__).with_name("javascript_child.mjs")
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
ROUNDS = examples(5)


def run_script(script: str, *arguments: str, timeout: float = 60) -> dict[str, Any]:
    """Runs a module with `Publisher` imported and `args` set; what it prints as JSON."""
    text = (
        f"import {{ Publisher }} from {json.dumps((CLIENT / 'publisher.mjs').as_uri())};\n"
        f"const args = {json.dumps(arguments)};\n{script}"
    )
    done = subprocess.run(
        [node_program(), "--input-type=module", "-e", text],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def sequences_once(sink: Any) -> list[str]:
    """The numbers of what a sink has, in the order of their first arrival. A publisher promises a
    sink each event at least once: one that ends while a request is under way sends it again, and a
    node drops what it has by its id.
    """
    return list({event["id"]: event["sequence"] for event in sink.stored}.values())


PUBLISH_THREE = """
const publisher = new Publisher({ outbox: args[0], url: args[1], channel: "lab", source: "balance",
  token: args[2] ?? "", firstPauseMs: 10, longestPauseMs: 50 });
for (const grams of [12.5, "ünïcode ✓", { deep: [1, null, true] }]) {
  const event = { type: "sample.mass", subject: "sample/7", data: { grams } };
  event.headers = { batch: "b1" };
  await publisher.publish(event);
}
const settled = await publisher.flush(Number(args[3] ?? 20000));
const status = publisher.status();
const rejected = publisher.rejected();
await publisher.close({ waitMs: 0 });
console.log(JSON.stringify({ settled, status, rejected }));
"""


def test_events_arrive_in_order_with_their_fields_and_the_outbox_is_empty(sink, tmp_path) -> None:
    told = run_script(PUBLISH_THREE, str(tmp_path / "outbox"), sink.url, "secret")
    assert told["settled"] is True
    assert (told["status"]["accepted"], told["status"]["pending"]) == (3, 0)
    assert [event["data"]["grams"] for event in sink.stored] == [
        12.5,
        "ünïcode ✓",
        {"deep": [1, None, True]},
    ]
    assert [event["sequence"] for event in sink.stored] == ["1", "2", "3"]
    assert {event["subject"] for event in sink.stored} == {"sample/7"}
    assert {event["batch"] for event in sink.stored} == {"b1"}
    assert set(sink.tokens) == {"Bearer secret"}


def test_what_cannot_be_delivered_waits_and_a_later_opening_delivers_it(sink, tmp_path) -> None:
    sink.answer = lambda _batch: (503, {}, {"title": "channel.unavailable", "detail": "disk"})
    outbox = str(tmp_path / "outbox")
    told = run_script(PUBLISH_THREE, outbox, sink.url, "", "300")
    assert told["settled"] is False
    assert told["status"]["pending"] == 3
    assert told["status"]["trouble"]["code"] == "channel.unavailable"
    sink.answer = lambda _batch: None
    done = subprocess.run(
        [node_program(), str(CLIENT / "outbox-command.mjs"), "drain", outbox, sink.url, "lab"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, json.loads(done.stdout)["pending"]) == (0, 0)
    assert sequences_once(sink) == ["1", "2", "3"]


def test_a_bad_event_is_found_kept_with_the_reason_and_blocks_nobody(sink, tmp_path) -> None:
    def answer(batch: list[dict[str, Any]]) -> Any:
        if any(event["data"]["grams"] == "ünïcode ✓" for event in batch):
            return 400, {}, {"title": "event.bad", "detail": "no"}
        return None

    sink.answer = answer
    told = run_script(PUBLISH_THREE, str(tmp_path / "outbox"), sink.url)
    assert told["settled"] is True
    assert [event["sequence"] for event in sink.stored] == ["1", "3"]
    assert [one["reason"]["code"] for one in told["rejected"]] == ["event.bad"]
    assert told["rejected"][0]["event"]["sequence"] == "2"


def test_a_node_that_bars_us_stops_delivery_and_a_portal_is_not_believed(sink, tmp_path) -> None:
    sink.answer = lambda _batch: (401, {}, {"title": "access.no_token", "detail": "who?"})
    told = run_script(PUBLISH_THREE, str(tmp_path / "one"), sink.url)
    assert (told["status"]["stopped"], told["status"]["pending"]) == (True, 3)
    sink.answer = lambda _batch: (200, {}, {"welcome": "to the airport"})
    told = run_script(PUBLISH_THREE, str(tmp_path / "two"), sink.url, "", "300")
    assert told["status"]["trouble"]["code"] == "http.strange_answer"
    assert told["status"]["pending"] == 3


def test_a_line_cut_off_by_the_end_of_the_process_is_dropped(sink, tmp_path) -> None:
    sink.answer = lambda _batch: (503, {}, {})
    outbox = tmp_path / "outbox"
    run_script(PUBLISH_THREE, str(outbox), sink.url, "", "50")
    file = next(outbox.glob("events-*.jsonl"))
    whole = file.read_bytes()
    file.write_bytes(whole + b'4 0123456789abcdef {"half":')
    sink.answer = lambda _batch: None
    told = run_script(PUBLISH_THREE, str(outbox), sink.url)
    assert told["status"]["damaged"] == 0
    assert sequences_once(sink) == ["1", "2", "3", "4", "5", "6"]
    assert len({event["epoch"] for event in sink.stored}) == 2


def test_two_processes_cannot_hold_one_outbox(sink, tmp_path) -> None:
    sink.answer = lambda _batch: (503, {}, {})
    outbox = tmp_path / "outbox"
    run_script(PUBLISH_THREE, str(outbox), sink.url, "", "10")
    (outbox / "lock").write_text("1")  # the first process of the machine is alive
    with pytest.raises(AssertionError, match="held by process 1"):
        run_script(PUBLISH_THREE, str(outbox), sink.url, "", "10")


@pytest.mark.slow
def test_killed_again_and_again_every_accepted_event_is_stored_once(tmp_path) -> None:
    site, outbox = tmp_path / "site", tmp_path / "outbox"
    site.mkdir()
    (site / "site.toml").write_text(SITE)
    chance = Chance(7)
    accepted: list[int] = []
    with NodeProcess(site) as node:
        node.start()
        for number in range(ROUNDS):
            accepted += _publish_and_kill(node, outbox, len(accepted), chance, number % 3 > 0)
            if number % 2:
                node.kill()
                node.start()
        assert node.doors is not None
        url = "http://{}:{}".format(*node.doors)
        command = [node_program(), str(CLIENT / "outbox-command.mjs"), "drain"]
        done = subprocess.run([*command, str(outbox), url, "lab"], timeout=60, check=True)
        assert done.returncode == 0
        node.stop()
    counts = Counter(stored.event.id for stored in WrittenLog(site / ".rapport/log")["lab"])
    assert set(counts.values()) == {1}
    assert {f"n{number}" for number in accepted} <= set(counts)
    assert len(accepted) >= ROUNDS * 2 // 3


def _publish_and_kill(
    node: NodeProcess, outbox: Path, done: int, chance: Chance, after_the_first: bool
) -> list[int]:
    """Numbers of the events that were accepted. Killed at any time, or surely not before it had
    something to tell, however slow the machine is.
    """
    assert node.doors is not None
    url = "http://{}:{}".format(*node.doors)
    first = str(done + 1)
    child = subprocess.Popen(
        [node_program(), str(CHILD), str(outbox), url, "lab", first],
        stdout=subprocess.PIPE,
        text=True,
    )
    told: list[str] = []
    assert child.stdout is not None
    lines = child.stdout
    has_told = threading.Event()

    def listen() -> None:
        for line in lines:
            told.append(line)
            has_told.set()

    reader = threading.Thread(target=listen)
    reader.start()
    assert not after_the_first or has_told.wait(60)
    time.sleep(chance.random() * 0.6)
    child.kill()
    child.wait()
    reader.join()
    lines.close()
    return [int(line) for line in told if line.endswith("\n")]
