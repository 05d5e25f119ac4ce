"""A proxy in front of a gateway that spoils answers: it keeps them, cuts them or is late with them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Final

from tests.servers.process import HOST

END_OF_HEAD: Final = b"\r\n\r\n"
METHODS: Final = (b"GET ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ")


class Spoils(Enum):
    """What becomes of a request, or of its answer."""

    NOTHING = "nothing"
    SILENT = "silent"
    """The request is taken, and nothing comes back on this connection any more, as behind a firewall that forgot it."""
    BROKEN = "broken"
    """The gateway gets the request. Its answer is a reset."""
    CUT = "cut"
    """The answer breaks off in the middle of its body."""
    LATE = "late"
    """The answer comes :attr:`SpoilingProxy.seconds` later."""


class SpoilingProxy:
    """Every connection to ``port`` becomes one to ``target``, and ``spoils`` says what becomes of each request whose
    first line contains ``where``."""

    def __init__(self, target: int) -> None:
        self.spoils = Spoils.NOTHING
        self.where = b""
        self.seconds = 0.0
        self.requests: list[str] = []
        """The first line of each request."""
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="spoiling-proxy")]
        self._closing = threading.Event()
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Of the gateway, as a browser sees it."""
        return f"http://{HOST}:{self.port}"

    def spoil(self, spoils: Spoils, where: str = "", seconds: float = 0.0) -> None:
        """Do this from now on. A stream that is open is silent, too."""
        self.where, self.seconds = where.encode(), seconds
        self.spoils = spoils

    def heal(self) -> None:
        """Pass everything on from now on; a connection that was spoiled stays so."""
        self.spoils = Spoils.NOTHING

    def close(self) -> None:
        """End it, and all connections with it."""
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            server = socket.create_connection((HOST, self._target))
            self._sockets |= {client, server}
            connection = _Connection(self, client, server)
            for run in (connection.requests, connection.answers):
                thread = threading.Thread(target=run, name="spoiling-proxy")
                self._threads.append(thread)
                thread.start()

    def wait(self) -> None:
        """Be late."""
        self._closing.wait(self.seconds)


class _Connection:
    """One connection of a browser."""

    def __init__(self, proxy: SpoilingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fate = Spoils.NOTHING
        self._path = b""

    def requests(self) -> None:
        """Pass on what the browser sends."""
        while data := _receive(self._client):
            if data.startswith(METHODS):
                line = data.split(b"\r\n", 1)[0]
                self._proxy.requests.append(line.decode("latin-1"))
                self._path = line
                if self._fate is not Spoils.SILENT:
                    self._fate = self._proxy.spoils if self._proxy.where in line else Spoils.NOTHING
            if self._fate is not Spoils.SILENT:
                _send(self._server, data)
        _end(self._server)

    def answers(self) -> None:
        """Pass on what the gateway answers, or what is left of it."""
        while data := _receive(self._server):
            proxy = self._proxy
            if proxy.spoils is Spoils.SILENT and proxy.where in self._path:
                self._fate = Spoils.SILENT
            if self._fate is Spoils.SILENT:
                continue
            if self._fate is Spoils.BROKEN:
                break
            if self._fate is Spoils.CUT:
                head, _, body = data.partition(END_OF_HEAD)
                _send(self._client, head + END_OF_HEAD + body[: len(body) // 2])
                break
            if self._fate is Spoils.LATE:
                proxy.wait()
            _send(self._client, data)
        if self._fate in (Spoils.BROKEN, Spoils.CUT):
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RD)  # ends the other thread
            threading.Event().wait(0.05)  # the part of an answer arrives before the reset
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._client.close()
            _end(self._server)
        else:
            _end(self._client)


def _receive(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 16)
    except OSError:
        return b""


def _send(one: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        one.sendall(data)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def spoiling(target: int) -> Iterator[SpoilingProxy]:
    """A proxy to a port of this machine."""
    proxy = SpoilingProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
