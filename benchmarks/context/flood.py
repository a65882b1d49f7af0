"""As many requests as one broker answers, by a client that does as little as it can. [CX-12]

Requests are sealed before the clock starts and answers are only counted, every hundredth is opened
and read: so it is the broker that is measured. Client and echo are processes of their own.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection

import msgspec

from benchmarks.context.broker_process import CLOCK, processor_s
from benchmarks.context.subject import Keys, answer_bytes, client_keys, question_of
from rapport.context.protocol import Answer, Request, decode, encode
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport.transport.fragments import WHOLE
from rapport.transport.sealed_datagrams import RUN_BYTES, Sealer, Unsealer, receiver_name

UNDER_WAY = 64
_READ_EVERY = 100
_LOST_SECONDS = 1.0
_ANY_SIZE = 65_535
_BUFFER_BYTES = 4 * 1024 * 1024


class Flooded(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    answered: int
    lost: int
    seconds: float
    processor_s: float
    """Of the client, without the sealing beforehand."""

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.answered / self.seconds

    @property
    def client_us(self) -> float:
        """Processor time of the client for each."""
        return self.processor_s / self.answered * 1e6


def flood(to: Address, keys: Keys, *, requests: int, things: int) -> Flooded:
    """Asks one broker for things drawn at random, always so many requests under way."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_flood, to, keys, requests, things, True).result()


def flood_echo(keys: Keys, *, requests: int) -> Flooded:
    """The same against a process that answers everything with as many bytes, unread: what the
    client and the sockets can do at most.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(theirs,), daemon=True)
    process.start()
    try:
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            return pool.submit(_flood, ours.recv(), keys, requests, 1, False).result()
    finally:
        process.kill()
        process.join()


def _echo(pipe: Connection) -> None:
    answer = b"x" * answer_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        opened.bind(("127.0.0.1", 0))
        pipe.send(opened.getsockname())
        while True:
            _datagram, sender = opened.recvfrom(_ANY_SIZE)
            opened.sendto(answer, sender)


def _flood(to: Address, keys: Keys, requests: int, things: int, reads: bool) -> Flooded:
    ring = client_keys(keys)
    seal = Sealer(ring, Chance.from_machine().randbytes(RUN_BYTES))
    sealed = _sealed_requests(seal, to, requests, things)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        opened.connect(to)
        opened.setblocking(False)
        return _run(opened, sealed, Unsealer(ring) if reads else None)


def _sealed_requests(seal: Sealer, to: Address, requests: int, things: int) -> list[bytes]:
    """Fresh for half a minute."""
    now_ms, chance, name = CLOCK.now_ms(), Chance(11), receiver_name(to)
    questions = (question_of(chance.randrange(things)) for _ in range(requests))
    return [
        seal.seal(WHOLE + encode(Request(id, question)), now_ms, to=name)
        for id, question in enumerate(questions, start=1)
    ]


def _run(opened: socket.socket, sealed: list[bytes], unseal: Unsealer | None) -> Flooded:
    send, receive, total = opened.send, opened.recv, len(sealed)
    sent = answered = lost = 0
    began_ns, before_s = CLOCK.steady_ns(), processor_s()
    while answered + lost < total:
        while sent < total and sent - answered - lost < UNDER_WAY:
            send(sealed[sent])
            sent += 1
        ready, _, _ = select.select([opened], [], [], _LOST_SECONDS)
        if not ready:
            lost = sent - answered
            continue
        try:
            while True:
                datagram = receive(_ANY_SIZE)
                answered += 1
                if answered % _READ_EVERY == 0 and unseal is not None:
                    _check_answer(datagram, unseal)
        except BlockingIOError:
            continue
    return Flooded(
        answered=answered,
        lost=lost,
        seconds=(CLOCK.steady_ns() - began_ns) / 1e9,
        processor_s=processor_s() - before_s,
    )


def _check_answer(datagram: bytes, unseal: Unsealer) -> None:
    opened = unseal.open(datagram, CLOCK.now_ms())
    message = decode(opened[0][1:]) if opened is not None else None
    if not isinstance(message, Answer):
        raise RuntimeError(f"the run is not valid: answered with {message}")
