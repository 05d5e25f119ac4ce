"""``gateway publish``: what is sent, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import commands
from tests.commands.conftest import Canned, Run

CONFIRMED = {"id": "0197", "status": "confirmed", "routed": True, "durable": True}


def publish(run: Run, canned: Canned, *arguments: str, input: bytes | None = None) -> dict[str, Any]:
    """Publish with these arguments; returns the body that was sent."""
    canned.answer(200, CONFIRMED)
    result = run("publish", "--url", canned.url, *arguments, input=input)
    assert result.exit_code == 0, result.stderr
    assert (result.stdout, result.stderr) == ("0197\n", "confirmed\n")
    ((method, path, headers, body),) = canned.asked
    assert (method, headers["content-type"]) == ("POST", "application/json")
    assert path == "/v1/brokers/b/exchanges/amq.default:publish"
    found: dict[str, Any] = body
    return found


def test_a_message_with_everything(run: Run, canned: Canned) -> None:
    options = ["--property", "content_type=text/a=b", "--property", "priority=5"]
    options += ["--header", "region=eu", "--header", "n:=3", "--header", 'deep:={"type": "int8", "value": 3}']
    assert publish(run, canned, "b", "", "orders", "hello", *options) == {
        "routing_key": "orders",
        "payload": "hello",
        "payload_encoding": "string",
        "mandatory": True,
        "properties": {"content_type": "text/a=b", "priority": 5},
        "headers": {"region": "eu", "n": 3, "deep": {"type": "int8", "value": 3}},
    }


@pytest.mark.parametrize(
    ("arguments", "input", "payload", "encoding"),
    [
        ([], None, "", "string"),
        (["-"], b"from stdin\n", "from stdin\n", "string"),
        (["-"], b"\xff\x00", "/wA=", "base64"),
        (["/wA=", "--base64"], None, "/wA=", "base64"),
        (["-", "--base64"], b"aGVs\nbG8=\n", "hello", "string"),
    ],
)
def test_where_the_payload_comes_from(
    run: Run, canned: Canned, arguments: list[str], input: bytes | None, payload: str, encoding: str
) -> None:
    body = publish(run, canned, "b", "amq.default", "q", *arguments, input=input)
    assert (body["payload"], body["payload_encoding"]) == (payload, encoding)


def test_the_idempotency_key_is_a_header(run: Run, canned: Canned) -> None:
    assert publish(run, canned, "b", "", "q", "--no-mandatory", "--idempotency-key", "k1")["mandatory"] is False
    assert canned.asked[0][2]["idempotency-key"] == "k1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--property", "priority"], "'priority' is not NAME=VALUE"),
        (["--property", "priority=high"], "priority is a number, not 'high'"),
        (["--header", "=x"], "'=x' is not NAME=VALUE"),
        (["--header", "n:=3,"], "must be JSON"),
        (["--base64", "a"], "PAYLOAD is not base64"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(run: Run, options: list[str], said: str) -> None:
    result = run("publish", "b", "e", "k", *options)
    assert result.exit_code == commands.USAGE
    assert said in result.stderr


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({**CONFIRMED, "durable": False}, "confirmed; a restart of the broker may lose it\n"),
        ({**CONFIRMED, "status": "unroutable", "routed": False}, "unroutable: no queue took it, and it is gone\n"),
    ],
)
def test_what_is_less_than_safe_is_said(run: Run, canned: Canned, answer: dict[str, Any], said: str) -> None:
    canned.answer(200, answer)
    assert run("publish", "--url", canned.url, "b", "e", "k").stderr == said


@pytest.mark.parametrize(
    ("options", "member"),
    [
        (["--not-before", "2030-01-01T00:00:00Z"], {"not_before": "2030-01-01T00:00:00Z"}),
        (["--not-before", "1893456000.5"], {"not_before": 1893456000.5}),
        (["--delay", "90"], {"delay_seconds": 90.0}),
    ],
)
def test_a_message_for_later(run: Run, canned: Canned, options: list[str], member: dict[str, Any]) -> None:
    canned.answer(202, {"id": "0197", "status": "scheduled", "not_before": "2030-01-01T00:00:00.000000Z"})
    result = run("publish", "--url", canned.url, "b", "e", "k", *options)
    assert result.exit_code == 0
    assert result.stdout == "0197\n"
    assert result.stderr == "scheduled for 2030-01-01T00:00:00.000000Z; the ledger holds it\n"
    ((_, _, _, body),) = canned.asked
    assert {name: body[name] for name in ("not_before", "delay_seconds") if name in body} == member


def test_two_times_are_wrong_usage(run: Run) -> None:
    result = run("publish", "b", "e", "k", "--not-before", "2030-01-01T00:00:00Z", "--delay", "1")
    assert result.exit_code == commands.USAGE
    assert "--not-before or --delay, not both" in result.stderr
