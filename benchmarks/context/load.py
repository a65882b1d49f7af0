"""Many consumers and providers in few processes: each tells or asks at its own beat, one socket for
each machine of the source's set-up. [CX-12]

Time of an answer: from before the request is written and sealed until its answer is opened and
read. Everybody wants the same thing, as in the source.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import msgspec

from benchmarks.context.broker_process import CLOCK
from benchmarks.context.subject import Keys, client_keys, question_of, record_of
from rapport.context.protocol import RECEIVED, Answer, Message, Put, Request, Status, decode, encode
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport.transport.fragments import WHOLE
from rapport.transport.sealed_datagrams import RUN_BYTES, Sealer, Unsealer, receiver_name

WITHIN_MS = 2_000
_ANY_SIZE = 65_535
_BUFFER_BYTES = 4 * 1024 * 1024
_READY_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_FIRST_PER_SECOND = 1_000.0
_NEVER_SECONDS = 86_400.0


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """Clients of one kind, dealt out to brokers in turn; each acts once per interval."""

    brokers: tuple[Address, ...]
    clients: int
    interval_s: float


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What consumers got."""

    took_us: list[float]
    """By answer, in order."""
    hops: list[int]
    refused: int
    unanswered: int


class Line:
    """One sealed socket to one broker; all of a machine's clients use it."""

    def __init__(self, to: Address, keys: Keys) -> None:
        ring = client_keys(keys)
        self._seal = Sealer(ring, Chance.from_machine().randbytes(RUN_BYTES))
        self._unseal, self._name = Unsealer(ring), receiver_name(to)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.connect(to)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """To the broker."""
        sealed = self._seal.seal(WHOLE + encode(message), CLOCK.now_ms(), to=self._name)
        self._socket.send(sealed)

    def take(self) -> Iterator[Message]:
        """What has come."""
        while True:
            try:
                datagram = self._socket.recv(_ANY_SIZE)
            except BlockingIOError:
                return
            opened = self._unseal.open(datagram, CLOCK.now_ms())
            if opened is not None:
                yield decode(opened[0][1:])

    def close(self) -> None:
        """No more."""
        self._socket.close()


class Beat:
    """When who acts: clients spread evenly over their interval, for ever in the same order."""

    def __init__(self, crowd: Crowd, began_ns: int) -> None:
        self._step_ns = crowd.interval_s * 1e9 / crowd.clients
        self._began_ns, self._clients, self._count = began_ns, crowd.clients, 0

    def wait_seconds(self, now_ns: int) -> float:
        """Until the next acts; 0 when it is due."""
        return max(self._began_ns + self._count * self._step_ns - now_ns, 0.0) / 1e9

    def next(self) -> int:
        """Who is due."""
        self._count += 1
        return (self._count - 1) % self._clients


def _act_until(
    lines: list[Line],
    beat: Beat,
    is_over: Callable[[int], bool],
    act: Callable[[int], None],
    take: Callable[[Message, int], None],
) -> None:
    """Acts on every beat and takes what comes."""
    while not is_over(now_ns := CLOCK.steady_ns()):
        while (wait := beat.wait_seconds(now_ns)) == 0.0:
            act(beat.next())
            now_ns = CLOCK.steady_ns()
        ready, _, _ = select.select(lines, [], [], min(wait, _LOOK_SECONDS))
        for line in ready:
            for message in line.take():
                take(message, CLOCK.steady_ns())


def _nobody() -> Beat:
    """Nobody acts: what is under way comes in."""
    never = Crowd(brokers=(), clients=1, interval_s=_NEVER_SECONDS)
    return Beat(never, CLOCK.steady_ns() + int(_NEVER_SECONDS * 1e9))


def _first_round(crowd: Crowd) -> Beat:
    """All once, one by one, quickly."""
    seconds = crowd.clients / _FIRST_PER_SECOND
    quick = Crowd(brokers=crowd.brokers, clients=crowd.clients, interval_s=seconds)
    return Beat(quick, CLOCK.steady_ns())


# --- consumers ---


def consume(crowd: Crowd, keys: Keys, seconds: float, warm_s: float) -> Asked:
    """Asks for so long in a process of its own; answers of the first `warm_s` are not counted."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_consume, crowd, keys, seconds, warm_s).result()


def _consume(crowd: Crowd, keys: Keys, seconds: float, warm_s: float) -> Asked:
    lines = [Line(broker, keys) for broker in crowd.brokers]
    try:
        return _Consumers(crowd, lines).run(seconds, warm_s)
    finally:
        for line in lines:
            line.close()


class _Consumers:
    def __init__(self, crowd: Crowd, lines: list[Line]) -> None:
        self._crowd, self._lines = crowd, lines
        self._question = question_of(0)
        self._under_way: dict[int, int] = {}
        self._answers: list[tuple[int, float, int]] = []
        self._refused = self._ids = 0

    def run(self, seconds: float, warm_s: float) -> Asked:
        began_ns = CLOCK.steady_ns()
        counted_ns, end_ns = began_ns + int(warm_s * 1e9), began_ns + int((warm_s + seconds) * 1e9)
        beat = Beat(self._crowd, began_ns)
        _act_until(self._lines, beat, lambda now: now >= end_ns, self._ask, self._take)
        last_ns = end_ns + WITHIN_MS * 1_000_000
        _act_until(
            self._lines,
            _nobody(),
            lambda now: not self._under_way or now >= last_ns,
            self._ask,
            self._take,
        )
        counted = [(took, hops) for sent, took, hops in self._answers if sent >= counted_ns]
        return Asked(
            took_us=[took for took, _ in counted],
            hops=[hops for _, hops in counted],
            refused=self._refused,
            unanswered=len(self._under_way),
        )

    def _ask(self, client: int) -> None:
        self._ids += 1
        self._under_way[self._ids] = CLOCK.steady_ns()
        line = self._lines[client % len(self._lines)]
        line.send(Request(self._ids, self._question, WITHIN_MS))

    def _take(self, message: Message, now_ns: int) -> None:
        if isinstance(message, Answer):
            sent_ns = self._under_way.pop(message.id, None)
            if sent_ns is not None:
                self._answers.append((sent_ns, (now_ns - sent_ns) / 1e3, message.hops))
        elif isinstance(message, Status) and self._under_way.pop(message.id, None) is not None:
            self._refused += 1


# --- providers ---


@contextmanager
def providing(crowd: Crowd, keys: Keys, valid_ms: int) -> Iterator[None]:
    """Providers at work in a process of their own; entered when each has told its first."""
    context = multiprocessing.get_context("spawn")
    ready, over = context.Event(), context.Event()
    process = context.Process(target=_provide, args=(crowd, keys, valid_ms, ready, over))
    process.start()
    try:
        if not ready.wait(_READY_SECONDS):
            raise RuntimeError("the providers were not heard")
        yield
    finally:
        over.set()
        process.join(_READY_SECONDS)
        if process.is_alive():
            process.kill()


def _provide(crowd: Crowd, keys: Keys, valid_ms: int, ready: Event, over: Event) -> None:
    lines = [Line(broker, keys) for broker in crowd.brokers]
    ids = waiting = 0

    def tell(client: int) -> None:
        nonlocal ids, waiting
        ids, waiting = ids + 1, waiting + 1
        record = record_of(0, CLOCK.now_ms(), provider=f"p{client}", valid_ms=valid_ms)
        lines[client % len(lines)].send(Put(ids, record))

    def take(message: Message, _now_ns: int) -> None:
        nonlocal waiting
        if isinstance(message, Status) and message.status != RECEIVED:
            waiting -= 1

    try:
        _act_until(lines, _first_round(crowd), lambda _now: ids >= crowd.clients, tell, take)
        _act_until(lines, _nobody(), lambda _now: not waiting, tell, take)
        ready.set()
        beat = Beat(crowd, CLOCK.steady_ns())
        _act_until(lines, beat, lambda _now: over.is_set(), tell, take)
    finally:
        for line in lines:
            line.close()
