"""A program that publishes until it is killed: prints the id of each event that was accepted.

Arguments: outbox, address of the node, name of this run.
"""

from __future__ import annotations

import sys
from itertools import count

from rapport.client import Publisher, PublisherSettings

outbox, url, run = sys.argv[1:]
settings = PublisherSettings(
    first_pause_ms=20, longest_pause_ms=200, most_events=50, segment_bytes=50_000
)
publisher = Publisher(outbox, url, channel="lab", source="lab", settings=settings)
for number in count():
    many = [{"type": "t", "id": f"{run}-{number}-{place}"} for place in range(1 + number % 3)]
    for accepted in publisher.publish_many(many):
        print(accepted, flush=True)
