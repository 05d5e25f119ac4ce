"""Run the examples of the documentation against a gateway: publish twice, consume, and receive a webhook."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.commands.client import ApiClient
from gateway.webhooks.attempts.signing import SharedSecret, sign

EXAMPLES: Final = Path(__file__).parent.parent.parent / "docs" / "examples"
LANGUAGES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "curl": ("sh", ("sh", "curl/NAME.sh")),
    "python": (sys.executable, (sys.executable, "python/NAME.py")),
    "node": ("node", ("node", "node/NAME.mjs")),
    "go": ("go", ("go", "run", "go/NAME/main.go")),
    "java": ("java", ("java", "java/CLASS.java")),
    "php": ("php", ("php", "php/NAME.php")),
}
"""Language -> its tool, and the command that runs a program."""
SECRET: Final = SharedSecret(bytes(range(32)))
WITHIN: Final = 60.0


def command(language: str, name: str) -> list[str]:
    """Return the command of a program."""
    return [part.replace("NAME", name).replace("CLASS", name.capitalize()) for part in LANGUAGES[language][1]]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**kept, "GO111MODULE": "off", "GOTOOLCHAIN": "local", **more}


def run(language: str, name: str, *arguments: str, **environ: str) -> tuple[int, str]:
    """Return exit status and output of a program."""
    done = subprocess.run(
        [*command(language, name), *arguments],
        cwd=EXAMPLES, env=environment(**environ), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def publishes_once_and_consumes(language: str, url: str) -> None:
    """A repeat with the same key publishes nothing; the consumer prints the message and acknowledges it."""
    client, queue = ApiClient(url, None), f"orders-{language}"
    client.ask("PUT", f"/v1/brokers/local-0-9-1/queues/{queue}", body={"durable": True})
    client.ask("PUT", f"/v1/subscriptions/{queue}", body={"broker": "local-0-9-1", "queue": queue})
    for _ in range(2):
        status, output = run(
            language, "publish", "local-0-9-1", "amq.default", queue, "order 7", f"key-{language}", GATEWAY_URL=url
        )
        assert (status, "confirmed" in output) == (0, True), output
    assert client.ask("GET", f"/v1/brokers/local-0-9-1/queues/{queue}")["messages"] == 1
    status, output = run(language, "consume", queue, GATEWAY_URL=url)
    assert status == 0
    assert "order 7" in output
    assert "SUCCESS" in output
    assert client.ask("GET", f"/v1/brokers/local-0-9-1/queues/{queue}")["messages"] == 0
    status, _ = run(language, "publish", "local-0-9-1", "amq.default", "nowhere", "x", "other", GATEWAY_URL=url)
    assert status != 0, "a message that no queue takes is an error"


def receives_and_verifies(language: str) -> None:
    """A signed request is taken; one that was changed, or is old, is not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started = command(language, "webhook")
    if language == "php":
        started = ["php", "-S", f"127.0.0.1:{port}", "php/webhook.php"]
    process = subprocess.Popen(
        started, cwd=EXAMPLES, env=environment(WEBHOOK_SECRET=str(SECRET), PORT=str(port)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        patience = time.monotonic() + WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < patience
                time.sleep(0.1)
        body = json.dumps({"message": {"payload": "order 7"}}).encode()
        assert ask(port, body, body) == 204
        assert ask(port, body, body.replace(b"7", b"8")) == 401
        assert ask(port, body, body, age=400) == 401
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def ask(port: int, signed: bytes, sent: bytes, age: int = 0) -> int:
    """Return the status of a request whose signature is of one body and that has another."""
    headers = {name.decode(): value.decode() for name, value in sign([SECRET], "m-1", int(time.time()) - age, signed)}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", sent, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def verifies_by_hand(age: int = 0, changed: bool = False) -> bool:
    """Return what ``verify.sh`` says of a request."""
    body = b'{"total": "12,50 \xe2\x82\xac"}\n\n'
    signed = {name.decode(): value.decode() for name, value in sign([SECRET], "m-1", int(time.time()) - age, body)}
    done = subprocess.run(
        ["sh", "curl/verify.sh"], cwd=EXAMPLES, input=body + b"x" * changed, capture_output=True, check=False,
        env=environment(
            KEY=str(SECRET), ID="m-1", TIMESTAMP=signed["webhook-timestamp"], SIGNATURE=signed["webhook-signature"]
        ),
    )  # fmt: skip
    return done.returncode == 0
