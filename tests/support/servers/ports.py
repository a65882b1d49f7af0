"""Ports of the loopback for servers that want to be told theirs."""

from __future__ import annotations

import socket


def free_port(*, is_udp: bool = False) -> int:
    """A port of the loopback that nobody uses now."""
    kind = socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
