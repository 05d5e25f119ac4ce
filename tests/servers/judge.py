"""The Java client of the tests: Qpid's own, an independent reader and writer of 0-8, 0-9, 0-9-1 and 0-10.

One Java process answers all questions of a test run; its sources are in ``tests/java/``. Header values are
``(type, value)`` pairs: in 0-10 the type is a Java class (``Integer``, ``byte[]``, …), before that the letter of
the wire type. Tables are lists of ``(key, pair)`` in order. Octets are base64, see :func:`octets`; a classic decimal
is ``(scale, unscaled)``.
"""

from __future__ import annotations

import json
import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Sequence
from itertools import count
from shutil import which
from typing import Any

from tests.servers.process import HOST, INSTALLED, Server, ServerUnavailable

_JAVA = INSTALLED / "java"
_PLATFORM = {"os.name": "Linux", "os.version": "0", "os.arch": "any"}
"""What the client tells a broker of its machine: the same everywhere, for the sake of transcripts."""


_PATIENCE = 100
"""How long an answer may take, in seconds."""


def _start() -> subprocess.Popen[bytes]:
    java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
    java += [f"-D{name}={value}" for name, value in _PLATFORM.items()]
    return subprocess.Popen(
        [*java, "-cp", f"{_JAVA / 'classes'}:{_JAVA / 'lib'}/*", "judge.Judge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


class JudgeError(Exception):
    """The client could not do it; the text is what it says."""


def octets(value: bytes) -> str:
    """Octets as the judge writes them."""
    return b64encode(value).decode()


class Judge:
    """The process. ``ask`` sends one command and waits for its answer."""

    def __init__(self) -> None:
        if not which("java") or not (_JAVA / "classes" / "judge" / "Judge.class").exists():
            raise ServerUnavailable("The Java client of the tests is not installed: run tests/servers/install.sh.")
        self._process = _start()
        self._names = count()

    def ask(self, **command: Any) -> Any:
        """One command, as ``Judge.java`` lists them.

        Raises:
            JudgeError: the client says that it failed, or says nothing; then it is started anew, and all its
                connections are gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        impatience = threading.Timer(_PATIENCE, self._process.kill)
        impatience.start()
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            impatience.cancel()
        if not line:
            self.close()
            self._process = _start()
            raise JudgeError(f"no answer to {command['do']} within {_PATIENCE} s, or the Java client ended")
        answer = json.loads(line)
        if "error" in answer:
            raise JudgeError(answer["error"])
        return answer["result"]

    def connect(self, version: str, port: int, virtual_host: str = "/", **login: str) -> JudgeConnection:
        """A connection to a broker on this machine; ``login``: ``user`` and ``password``, guest by default."""
        name = f"c{next(self._names)}"
        self.ask(
            do="connect", version=version, host=HOST, port=port, virtual_host=virtual_host, **login, **{"as": name}
        )
        return JudgeConnection(self, name)

    def connect_to(self, server: Server, version: str) -> JudgeConnection:
        """A connection to one of our servers."""
        return self.connect(version, server.port, server.virtual_host)

    def scenario(
        self, version: str, port: int, virtual_host: str = "/", syntax: str = "ADDR", only: str | None = None
    ) -> dict[str, str | None]:
        """A round of what JMS applications do: step -> None, or what went wrong in it. ``syntax`` is how they
        name their queues: ADDR or BURL; ``only`` is one of the steps."""
        where = {"version": version, "host": HOST, "port": port, "virtual_host": virtual_host}
        result: dict[str, str | None] = self.ask(do="scenario", syntax=syntax, only=only, **where)
        return result

    def recode(self, *items: tuple[str, bytes]) -> list[tuple[str | None, bytes | str]]:
        """What Qpid's own codec of 0-10 makes of ``("control", "command" or "struct", octets)``: the class that it
        reads and the octets that it writes again, or None and why it cannot."""
        answers = self.ask(do="recode", items=[(kind, octets(value)) for kind, value in items])
        return [(name, said if name is None else b64decode(said)) for name, said in answers]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class JudgeConnection:
    """One connection of the judge."""

    def __init__(self, judge: Judge, name: str) -> None:
        self._judge = judge
        self._name = name

    def _ask(self, verb: str, **command: Any) -> Any:
        return self._judge.ask(do=verb, on=self._name, **command)

    def declare(self, queue: str, **options: Any) -> None:
        """Declare a queue; options ``durable``, ``exclusive``, ``auto_delete``, ``arguments``."""
        self._ask("declare", queue=queue, **options)

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue."""
        self._ask("bind", queue=queue, exchange=exchange, routing_key=routing_key)

    def delete(self, queue: str) -> None:
        """Delete a queue."""
        self._ask("delete", queue=queue)

    def publish(self, exchange: str, routing_key: str, *messages: dict[str, Any]) -> None:
        """Publish messages: ``{"body": base64, property: value, "headers": [[key, [type, value]], …]}``."""
        self._ask("publish", exchange=exchange, routing_key=routing_key, messages=messages)

    def consume(
        self, queue: str, number: int = 1, milliseconds: int = 5_000, settlement: str = "accept"
    ) -> Sequence[dict[str, Any]]:
        """Up to ``number`` messages; ``settlement``: accept, release (0-10: reject). Bodies are octets."""
        messages: list[dict[str, Any]] = self._ask(
            "consume", queue=queue, count=number, milliseconds=milliseconds, settlement=settlement
        )
        for message in messages:
            message["body"] = b64decode(message["body"])
        return messages

    def branches(self, queue: str) -> list[Any]:
        """0-10: every dtx command and every query, one behind the other; what each said. The session is over then."""
        said: list[Any] = self._ask("branches", queue=queue)
        return said

    def close(self) -> None:
        """Close it."""
        self._ask("close")
