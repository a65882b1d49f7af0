"""A program that listens until it is killed: writes each result to its own file, then acknowledges.

Arguments: directory of the place, address of the node, file of results, push or pull.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from rapport.client import Listener, ListenerSettings, ReceivedEvent

directory, url, file, mode = sys.argv[1:]
settings = ListenerSettings(
    first_pause_ms=10, longest_pause_ms=100, batch_events=7, most_events=50, wait_seconds=2
)
results = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
written = Path(file).read_bytes()
whole = written[: written.rfind(b"\n") + 1]
os.ftruncate(results, len(whole))  # a line that was cut short counts as not written
listener = Listener(
    url, "lab", "type = 't'", directory=directory, acknowledging="explicit", settings=settings
)
if whole:
    listener.acknowledge(int(whole.split(b"\n")[-2].split()[0]))


def handle(received: ReceivedEvent) -> None:
    """The result and the position in one write: either both are there or none is."""
    os.write(results, f"{received.position} {received.event.id}\n".encode())
    os.fsync(results)
    listener.acknowledge(received)
    print(received.position, flush=True)


if mode == "push":
    listener.push(handle)
    threading.Event().wait()
while True:
    for one in listener.pull(5, timeout=10):
        handle(one)
