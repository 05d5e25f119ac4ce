"""The image without Docker: its steps in clean roots, and what they make in a network namespace, as containers have it.

Needs root, and a network for the locked packages. Without either it fails, and says so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from tests.deploy.image import Stage, build, make_root, put_python, try_it

OUTSIDE, ADDRESS = (f"198.18.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4 + end}" for end in (1, 2))
"""The two ends of the cable, of :data:`tests.conftest.CABLES`: others in each run."""
HTTP, OPS, AMQP = 8080, 8081, 5670
FIRST_STEPS: Final = 5
"""How many lines of its output are what to do first."""
WITHIN = 60.0
"""How long it may take to start, in seconds."""
METHODS: Final = {"get", "put", "post", "patch", "delete"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The last stage of the Dockerfile."""
    assert os.geteuid() == 0, "this test needs root: it makes roots and network namespaces"
    folder = tmp_path_factory.mktemp("image")
    base = folder / "root"
    make_root(base)
    put_python(base)
    return build(base, folder)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace, at :data:`ADDRESS` for this machine, which is all that it reaches."""
    name = f"gateway-{os.getpid()}"
    ours, theirs = f"gw{os.getpid()}a", f"gw{os.getpid()}b"
    ip("netns", "add", name)
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("address", "add", f"{OUTSIDE}/30", "dev", ours)
        ip("link", "set", ours, "up")
        for words in (("address", "add", f"{ADDRESS}/30", "dev", theirs), ("link", "set", theirs, "up")):
            ip("-netns", name, *words)
        ip("-netns", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("link", "del", ours)  # a process that is left would keep the namespace, and the route to it
        ip("netns", "del", name)


@contextmanager
def container(image: Stage, namespace: str, command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the image in the namespace, as the image's user. The end of the block ends it."""
    words = ["ip", "netns", "exec", namespace, *image.command(f"exec gateway {command}")]
    process = subprocess.Popen(
        words, env={**image.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()
            process.communicate()


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses and ports where the namespace of a process listens."""
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state = line.split()[:4]
        if state == "0A":
            number, port = local.split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(number)[::-1]), int(port, 16)))
    assert len(Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()) == 1, "nothing listens on IPv6"
    return found


def status(method: str, path: str, key: str = "") -> tuple[int, Any]:
    """The status and the body of an answer: of a later one, as long as there were too many without a key."""
    while (answer := asked(method, path, key))[0] == 429:
        time.sleep(0.1)
    return answer


def asked(method: str, path: str, key: str) -> tuple[int, Any]:
    """The status and the body of an answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://{ADDRESS}:{HTTP}{path}", headers=headers, method=method.upper())
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def login(user: str, password: str) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters(ADDRESS, AMQP, "/", pika.PlainCredentials(user, password))
    return pika.BlockingConnection(parameters)


def test_the_steps_of_the_image(image: Stage) -> None:
    try_it(image)


def test_a_first_message_from_outside_and_nothing_without_the_key(
    image: Stage, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with container(image, namespace, "serve --try-out") as process:
        assert process.stdout is not None
        printed = [process.stdout.readline()]
        assert f"http://0.0.0.0:{HTTP}" in printed[0], printed
        printed += [process.stdout.readline() for _ in range(FIRST_STEPS)]
        commands = [line.strip() for line in printed if line.startswith("  curl ")]
        assert len(commands) == 2, printed
        for command in commands:
            command = command.replace("127.0.0.1", ADDRESS)
            done = subprocess.run(
                ["bash", "-c", f"{command} --silent --show-error --fail --noproxy '*'"],
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            assert done.returncode == 0, (done.stderr, done.stdout)
        published = json.loads(done.stdout)
        with capsys.disabled():
            print(f"\nfrom the start of the container to the first message: {time.monotonic() - began:.1f} s")
        assert published["status"] == "confirmed"
        assert published["routed"] is True

        key, password = (re.findall(r": ([0-9a-f]+)\n", line)[0] for line in printed[1:3])
        connection = login("try-out", password)
        method, _, body = connection.channel().basic_get("hello", auto_ack=True)
        assert method is not None
        assert body == b"hi"
        connection.close()

        assert listening(process.pid) == {("0.0.0.0", HTTP), ("0.0.0.0", AMQP), ("127.0.0.1", OPS)}
        code, document = status("get", "/openapi.json", key)
        assert code == 200
        answers = {
            (path, tried): status(method, re.sub(r"\{[^}]*\}", "x", path), tried)[0]
            for path, operations in json.loads(document)["paths"].items()
            for method in METHODS & operations.keys()
            for tried in ("", "0" * len(key))
        }
        assert len(answers) > 100
        # Documents, pages and the login are open; each route to data asks for the key.
        is_open = {path for (path, _), code in answers.items() if code != 401 and path.startswith("/v1/")}
        assert is_open == {"/v1/login"}
        assert {code for (_, tried), code in answers.items() if tried} == {401}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((ADDRESS, OPS), timeout=10)
        for user, wrong in (("guest", "guest"), ("try-out", "guest"), ("try-out", ""), ("guest", password)):
            with pytest.raises((pika.exceptions.AMQPConnectionError, pika.exceptions.ConnectionClosed)):
                login(user, wrong)
    assert process.returncode == 0


def test_without_a_key_nothing_is_open(image: Stage, namespace: str) -> None:
    with container(image, namespace, "serve") as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{HTTP}" in process.stdout.readline()
        assert {address for address, _ in listening(process.pid)} == {"127.0.0.1"}
        for port in (HTTP, OPS, AMQP):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((ADDRESS, port), timeout=10)
    assert process.returncode == 0
    with container(image, namespace, "serve", GATEWAY_HTTP_HOST="0.0.0.0") as process:
        assert process.wait(timeout=60) == 2
