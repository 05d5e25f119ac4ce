"""A relay that listens on a port of its own, passes everything on to a server, and can be told what it saw.

It is for golden transcripts: what a foreign client and a real broker say to each other, octet by octet. Writes
are recorded as they were read from a socket, so a transcript's pieces need not be frames.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

from tests.servers.process import HOST

CLIENT = "client"
SERVER = "server"


class Relay:
    """Every connection to ``port`` becomes one to ``target``. ``connections`` has, for each, the list of
    ``(who spoke, octets)``."""

    def __init__(self, target: int) -> None:
        self.connections: list[list[tuple[str, bytes]]] = []
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        self._sockets: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._sockets) // 2

    def close(self) -> None:
        """End it, and all connections with it."""
        self._stop.send(b"x")
        self._thread.join()
        self._stop.close()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._stopped, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._stopped:
                    selector.close()
                    for each in (*self._sockets, self._listener, self._stopped):
                        each.close()
                    return
                if key.fileobj is self._listener:
                    self._accept(selector)
                else:
                    self._pass_on(selector, key)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection((HOST, self._target))
        record: list[tuple[str, bytes]] = []
        self.connections.append(record)
        self._sockets |= {client, server}
        for one, other, who in ((client, server, CLIENT), (server, client, SERVER)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(one, selectors.EVENT_READ, (other, who, record))

    def _pass_on(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        one = key.fileobj
        assert isinstance(one, socket.socket)
        other, who, record = key.data
        try:
            data = one.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if data:
            record.append((who, data))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                other.sendall(data)
            return
        selector.unregister(one)
        try:
            other.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            pass
        if other not in selector.get_map():
            for each in (one, other):
                each.close()
                self._sockets.discard(each)


@contextlib.contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """A relay to a port of this machine."""
    relay = Relay(port)
    try:
        yield relay
    finally:
        relay.close()
