"""Hearing of appends by any process: LISTEN, and a look now and then in case one was missed.
[CH-13]
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable

from psycopg import sql

from rapport.core.errors import StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.postgres.connections import Link, PostgresConnections, translated

_log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""How late a growth is heard of whose notification got lost."""
_LONGEST_NEWS = 2_000
_LASTS = "SELECT name, last FROM logs WHERE last > 0"

Grown = Callable[[str, int], None]


def news(log: str, last: int) -> str:
    """What a notification says; nothing (look for yourself) when the name is too long for it."""
    return f"{last} {log}" if len(log) <= _LONGEST_NEWS else ""


class PostgresWatch:
    """A thread that calls `grown(log, last)` from the moment this object is made until `stop`.

    After a break of the connection it looks for what it missed. Raises StoreUnavailable when it
    cannot begin.
    """

    def __init__(self, connections: PostgresConnections, grown: Grown) -> None:
        self._connections, self._grown = connections, grown
        found = connections.run(lambda link: link.execute(_LASTS).fetchall())
        self._known: dict[str, int] = dict(found)
        self._stopped = False
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="postgres-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last call has been made."""
        self._stopped = True
        self._waker.send(b"!")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        # Not by the thread: it may end between our two first lines, and nobody could be woken.
        self._waker.close()
        self._wake.close()

    def _run(self) -> None:
        while not self._stopped:
            try:
                link = self._connections.open_apart()
                try:
                    with translated(link):
                        self._listen(link)
                finally:
                    link.close()
            except StoreUnavailable as error:
                if not self._stopped:
                    _log.warning("not listening", why=error.message, again_in_seconds=LOOK_SECONDS)
                    self._pause()

    def _listen(self, link: Link) -> None:
        bell = sql.Identifier(f"rapport_{self._connections.schema}")
        link.execute(sql.SQL("LISTEN {}").format(bell))
        with selectors.DefaultSelector() as selector:
            selector.register(link.fileno(), selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            self._look(link)
            while not self._stopped:
                selector.select(LOOK_SECONDS)
                told = [notify.payload for notify in link.notifies(timeout=0)]
                if not all(map(self._tell_news, told)) or not told:
                    self._look(link)

    def _look(self, link: Link) -> None:
        for log, last in link.execute(_LASTS).fetchall():
            self._tell(log, last)

    def _tell_news(self, payload: str) -> bool:
        """Passes on what a notification says; whether it said anything."""
        last, _space, log = payload.partition(" ")
        if not last.isdecimal():
            return False
        self._tell(log, int(last))
        return True

    def _tell(self, log: str, last: int) -> None:
        if self._known.get(log, 0) < last:
            self._known[log] = last
            self._grown(log, last)

    def _pause(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.select(LOOK_SECONDS)
