"""Keys for tests of sealing: a network with two brokers, and clients that know only their own."""

from __future__ import annotations

import pytest

from rapport.transport.keys import DatagramKeys, make_key

NOW_MS = 1_772_442_000_000


class Ring:
    """The keys of a small network."""

    def __init__(self) -> None:
        self.network = make_key("brokers", "network")
        self.ann, self.ben = make_key("ann", "client"), make_key("ben", "client")

    def member(self) -> DatagramKeys:
        return DatagramKeys([self.network, self.ann, self.ben])

    def client(self, name: str) -> DatagramKeys:
        return DatagramKeys([getattr(self, name)])


@pytest.fixture
def ring() -> Ring:
    return Ring()
