"""The request suite bound to memory and the embedded back end. [CH-13]"""

from __future__ import annotations

import pytest

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.backends.memory import open_memory
from rapport.kernel.clock import ManualClock
from rapport.testing.suites.requests import RequestSuite


class MemoryPlace:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def open(self):
        return open_memory(self.clock)


class EmbeddedPlace:
    def __init__(self, clock: ManualClock, directory) -> None:
        self.clock, self._directory = clock, directory

    def open(self):
        return open_embedded(self._directory / "log", self.clock, segment_bytes=20_000)


@pytest.fixture(params=["memory", "embedded"])
def channel_place(request, clock, tmp_path):
    return MemoryPlace(clock) if request.param == "memory" else EmbeddedPlace(clock, tmp_path)


class TestRequests(RequestSuite):
    @pytest.mark.lacks("memory", reason="memory is forgotten at the end of the process")
    def test_tokens_and_takes_outlive_restart_and_lease(self, channel_place):
        super().test_tokens_and_takes_outlive_restart_and_lease(channel_place)
