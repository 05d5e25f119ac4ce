"""The proxy itself: every toxic does what its name says, to the direction it was given."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import (
    Bandwidth,
    Corrupt,
    Direction,
    HalfOpen,
    Latency,
    LimitData,
    Proxy,
    ResetPeer,
    Slicer,
    SlowClose,
    Timeout,
)
from tests.servers.process import free_port, wait_until

UP, DOWN = Direction.UPSTREAM, Direction.DOWNSTREAM


class Echo:
    """A server that sends back what it reads, and closes when its client does."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.reads: list[bytes] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := client.recv(1 << 16):
                self.reads.append(data)
                client.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def ask(client: socket.socket, data: bytes, length: int | None = None) -> tuple[bytes, float]:
    """Send, and read as many octets back (or until the end); what came, and how long it took."""
    began = time.monotonic()
    client.sendall(data)
    got = b""
    while len(got) < (len(data) if length is None else length) and (piece := client.recv(1 << 16)):
        got += piece
    return got, time.monotonic() - began


def silent(client: socket.socket, seconds: float = 0.15) -> bool:
    """Whether nothing comes, not even an end."""
    client.settimeout(seconds)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_it_passes_everything_on(proxy: Proxy, client: socket.socket) -> None:
    data = bytes(range(256)) * 4096
    done = threading.Thread(target=client.sendall, args=(data,))
    done.start()
    assert ask(client, b"", len(data))[0] == data
    done.join()
    assert proxy.octets == {UP: len(data), DOWN: len(data)}
    assert (proxy.accepted, proxy.connections) == (1, 1)


def test_half_a_close_is_passed_on(client: socket.socket) -> None:
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert client.recv(100) == b"last"
    assert client.recv(100) == b""


def connect_and_read(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        return client.recv(1)


def test_where_nobody_listens_the_client_is_reset() -> None:
    with Proxy(free_port()) as proxy, pytest.raises(ConnectionResetError):
        connect_and_read(proxy.port)


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_latency(proxy: Proxy, client: socket.socket, direction: Direction) -> None:
    name = proxy.add(Latency(0.2), direction)
    assert ask(client, b"x")[1] >= 0.2
    proxy.remove(name)
    assert min(ask(client, b"x")[1] for _ in range(5)) < 0.2


def test_latency_delays_and_does_not_throttle(proxy: Proxy, client: socket.socket) -> None:
    began = time.monotonic()
    proxy.add(Latency(1.0, 0.1), UP)
    for number in range(10):
        client.sendall(bytes([number]))
        time.sleep(0.01)
    assert ask(client, b"", 10)[0] == bytes(range(10)), "the order is kept"
    assert time.monotonic() - began < 8, "one latency, not ten"


def test_bandwidth(proxy: Proxy, client: socket.socket) -> None:
    proxy.add(Bandwidth(20_000), DOWN)
    assert ask(client, b"x" * 6_000)[1] >= 0.25


def test_slow_close(proxy: Proxy, client: socket.socket) -> None:
    began = time.monotonic()
    proxy.add(SlowClose(0.2), UP)
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert time.monotonic() - began >= 0.2


def test_timeout_swallows_and_closes(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    began = time.monotonic()  # before the toxic, whose time it is
    proxy.add(Timeout(0.2), DOWN)
    assert ask(client, b"lost")[0] == b""
    assert time.monotonic() - began >= 0.2
    assert echo.reads == [b"lost"], "only one direction"


def test_timeout_of_zero_swallows_as_long_as_it_is_in(proxy: Proxy, client: socket.socket) -> None:
    with proxy.toxic(Timeout(), DOWN):
        client.sendall(b"lost")
        assert silent(client)
    assert ask(client, b"found")[0] == b"found"


def test_reset_peer(proxy: Proxy, client: socket.socket) -> None:
    ask(client, b"x")
    proxy.add(ResetPeer(0.05))
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as later, pytest.raises(ConnectionResetError):
        later.recv(1)


@pytest.fixture
def pieces(proxy: Proxy, echo: Echo, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written towards the server, piece by piece. What a reader gets at once is the system's business."""
    written: list[bytes] = []
    sendall = proxy._loop.sock_sendall

    async def spy(sink: socket.socket, data: memoryview) -> None:
        if sink.getpeername()[1] == echo.port:
            written.append(bytes(data))
        await sendall(sink, data)

    monkeypatch.setattr(proxy._loop, "sock_sendall", spy)
    return written


def test_slicer(proxy: Proxy, client: socket.socket, pieces: list[bytes]) -> None:
    proxy.add(Slicer(1), UP)
    assert ask(client, b"abcdef")[0] == b"abcdef"
    assert pieces == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_slices_of_several_sizes(proxy: Proxy, client: socket.socket, pieces: list[bytes]) -> None:
    proxy.add(Slicer(3, 2, 0.001), UP)
    data = bytes(range(60))
    assert ask(client, data)[0] == data
    sizes = {len(piece) for piece in pieces[:-1]}
    assert sizes <= {1, 2, 3, 4, 5}
    assert len(sizes) > 1


@pytest.mark.parametrize("limit", [0, 1, 5, 6])
@pytest.mark.parametrize("reset", [False, True])
def test_limit_data(proxy: Proxy, client: socket.socket, limit: int, reset: bool) -> None:
    proxy.add(LimitData(limit, reset), DOWN)
    got = b""
    end: type[Exception] | None = None
    client.sendall(b"abcdef")
    try:
        while piece := client.recv(100):
            got += piece
    except ConnectionResetError as error:
        end = type(error)
    assert got == b"abcdef"[:limit]
    assert end is (ConnectionResetError if reset else None)


def test_the_limit_counts_over_chunks_and_per_connection(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.add(LimitData(4), UP)
    assert ask(client, b"ab")[0] == b"ab"
    client.sendall(b"cdef")
    with contextlib.suppress(ConnectionResetError):
        while client.recv(100):
            pass
    assert wait_until(lambda: b"".join(echo.reads) == b"abcd", 5)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as other:
        assert ask(other, b"abc")[0] == b"abc"


def test_a_limit_for_one_connection(proxy: Proxy, client: socket.socket) -> None:
    proxy.add(LimitData(2, once=True), DOWN)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as other:
        assert ask(other, b"a")[0] == b"a"
        assert ask(client, b"abc")[0] == b"ab"
        assert ask(other, b"bcd")[0] == b"bcd"
    assert proxy.toxics == {}


def test_corrupt(proxy: Proxy, client: socket.socket) -> None:
    proxy.add(Corrupt(3, mask=0x01), DOWN)
    assert ask(client, b"aa")[0] == b"aa"
    assert ask(client, b"aaaa")[0] == b"a\x60aa"


def test_corrupt_again_and_again(proxy: Proxy, client: socket.socket) -> None:
    proxy.add(Corrupt(1, every=4), UP)
    assert ask(client, b"\x00" * 3)[0] + ask(client, b"\x00" * 7)[0] == b"\x00\xff\x00\x00\x00\xff\x00\x00\x00\xff"


def test_half_open(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    ask(client, b"x")
    with proxy.toxic(HalfOpen()):
        client.sendall(b"later")
        assert silent(client)
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as other:
            other.sendall(b"y")
            assert silent(other)
        assert echo.reads == [b"x"]
    assert ask(client, b"", 5)[0] == b"later"


def test_down_and_up(proxy: Proxy, client: socket.socket) -> None:
    ask(client, b"x")
    proxy.down()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 5)
    assert proxy.connections == 0
    proxy.up()
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
        assert ask(again, b"y")[0] == b"y"


def test_reset(proxy: Proxy, client: socket.socket) -> None:
    ask(client, b"x")
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_peer_that_does_not_read_holds_the_other_up(proxy: Proxy, client: socket.socket) -> None:
    """Nothing is gathered without bound: the kernel's buffers of both connections, in both directions, become full."""
    most = 4 * sum(int(Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[2]) for way in "rw")
    client.settimeout(0.3)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 2 * most:
            sent += client.send(bytes(1 << 20))
    assert sent < most


def test_toxics_have_names(proxy: Proxy) -> None:
    proxy.add(Latency(1), name="late")
    with pytest.raises(KeyError):
        proxy.remove("early")
    proxy.clear()
    assert proxy.toxics == {}
