"""What runs in a process of its own, and the load generator, which everything over HTTP is measured with."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.benchmarks import programs
from tests.benchmarks.programs import clock, load
from tests.benchmarks.rows import ClientFailed


def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(ClientFailed, match="nothing ended with status 1: there is no program 'nothing'"):
        programs.run("nothing", {})


def test_a_program_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TIMEOUT", 0.2)
    with pytest.raises(ClientFailed, match="sleep did not end within 0 s"):
        programs.call(["sh", "-c", "sleep 30"], {}, "sleep")


def test_settings_of_a_gateway_do_not_reach_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_HTTP_PORT", "1")
    assert "GATEWAY_HTTP_PORT" not in programs.environment()


def test_every_program_is_there() -> None:
    folder = programs.ROOT / "tests" / "benchmarks" / "programs"
    modules = {path.stem for path in folder.glob("[!_]*.py")} - {"clock"}
    assert modules == programs.PROGRAMS.keys()


def test_percentiles() -> None:
    assert clock.percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert clock.percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert clock.percentile([7.0], 0.5) == 7.0


def test_what_this_process_costs() -> None:
    with clock.watched(os.getpid()) as found, clock.Stopwatch() as watch:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
    assert watch.cpu == pytest.approx(0.1, abs=0.05)
    assert found.cpu == pytest.approx(watch.cpu, abs=0.05)
    assert watch.seconds >= 0.09
    assert 1 << 20 < clock.resident() <= clock.largest() * 1.01


def test_the_loop_is_the_first_thread_of_a_process() -> None:
    before = clock.cpu_of(os.getpid()), clock.cpu_of_loop(os.getpid())

    def compute() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    whole, loop = clock.cpu_of(os.getpid()) - before[0], clock.cpu_of_loop(os.getpid()) - before[1]
    assert whole - loop == pytest.approx(0.2, abs=0.05)


# ----------------------------------------------------------------------------------------- load generator

Respond = Callable[[bytes], bytes]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(respond: Respond) -> AsyncIterator[dict[str, Any]]:
    """A server that answers each request so; yields a job against it."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        job["opened"] = connections
        while head := await reader.read(65_536):
            answer = respond(head)
            writer.write(answer)
            if b"Connection: close" in answer or not answer:
                break
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    job: dict[str, Any] = {"port": listener.sockets[0].getsockname()[1], "script": "test"}
    job |= {
        "connections": 2,
        "seconds": 0.05,
        "patience": 60.0,
        "login": False,
        "queue": "q",
        "size": 4,
        "count": 1,
        "opened": 0,
    }
    async with listener:
        yield job


def once(job: dict[str, Any]) -> Callable[[], load.Exchange]:
    return lambda: load.once(load.request(job, "/x", {}), 200, 1, b"ok")


Runs = Callable[[Respond], Awaitable[dict[str, Any]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Have the generator load a server that answers so."""
    monkeypatch.setattr(load, "SCRIPTS", {**load.SCRIPTS, "test": once})

    async def run(respond: Respond, **settings: Any) -> dict[str, Any]:
        async with server(respond) as job:
            job.update(settings)
            return {**await load._run(job), "opened": job["opened"]}

    return run


async def test_load_counts_what_was_answered(run: Runs) -> None:
    found = await run(lambda head: OK)
    assert found["number"] > 1
    assert found["opened"] == 2
    assert 0 < found["p50"] <= found["p99"] <= found["seconds"]


async def test_load_reads_chunked_answers(run: Runs) -> None:
    found = await run(
        lambda head: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
    )
    assert found["number"] > 1


async def test_load_connects_again_where_the_server_closes(run: Runs) -> None:
    found = await run(lambda head: OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert found["opened"] >= found["number"] > 1


async def test_another_answer_than_is_wanted_ends_the_run(run: Runs) -> None:
    with pytest.raises(load.Wrong, match="found status 503: b'no'"):
        await run(lambda head: b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno")


async def test_a_server_that_hangs_up_ends_the_run(run: Runs) -> None:
    with pytest.raises(ConnectionError, match="hung up"):
        await run(lambda head: b"")


async def test_a_server_that_speaks_no_http_ends_the_run(run: Runs) -> None:
    with pytest.raises(Exception, match="HTTP"):
        await run(lambda head: b"AMQP\x00\x00\x09\x01")


async def test_pulled_messages_are_acknowledged(run: Runs) -> None:
    asked: list[bytes] = []

    def respond(request: bytes) -> bytes:
        asked.append(request)
        if b":pull " in request:
            body = json.dumps({"messages": [{"ack_id": "a"}, {"ack_id": "b"}] if len(asked) < 2 else []})
        else:
            body = '{"results":[{"status":"SUCCESS"},{"status":"SUCCESS"}]}'
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    found = await run(respond, script="pull", connections=1)  # type: ignore[call-arg]
    assert found["number"] == 2
    assert json.loads(asked[1].partition(b"\r\n\r\n")[2]) == {"ack_ids": ["a", "b"]}
    assert len(asked) == 3, "an empty answer is the end"
