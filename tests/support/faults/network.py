"""A network between processes that can be cut and healed. For tests. [CH-5, CH-11]"""

from __future__ import annotations

import socket
import threading

from support.processes.node import NodeProcess


class Network:
    """A fixed address before a node that moves; `cut` breaks every connection, both ways."""

    def __init__(self, node: NodeProcess) -> None:
        self._node, self._up = node, True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self.broken: OSError | None = None
        """How a connection last broke."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Breaks what is open and lets nobody through."""
        self._up = False
        with self._guard:
            for one in self._open:
                _break(one)
            self._open.clear()

    def heal(self) -> None:
        """Lets everybody through again."""
        self._up = True

    def close(self) -> None:
        """Ends for good."""
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _address = self._listener.accept()
            except OSError:
                return
            doors = self._node.doors
            try:
                far = socket.create_connection(doors, timeout=5) if doors and self._up else None
            except OSError:
                far = None
            if far is None:
                near.close()
                continue
            far.settimeout(None)  # the time-out was for connecting: a long poll is silent for long
            with self._guard:
                self._open |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError as error:
            self.broken = error  # cut, or killed: what the test is about
        for one in (source, sink):
            with self._guard:
                self._open.discard(one)
            _break(one)
        source.close()


def _break(connection: socket.socket) -> None:
    """Ends it on both sides; closing alone would not wake the thread that reads."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was broken already, which is what we want
