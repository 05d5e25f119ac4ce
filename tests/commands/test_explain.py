"""``gateway explain``: what is asked, what is printed, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway import commands
from tests.commands.conftest import Canned, Run

ANSWER: dict[str, Any] = {
    "to": "0-10",
    "product": "qpid",
    "fields": [
        {"field": "type", "value": "order", "result": "same", "becomes": "order"},
        {"field": "timestamp", "value": 5, "result": "carried", "why": "in 0-10 the timestamp is the broker's"},
        {"field": "headers/x", "value": "y" * 60, "result": "mapped", "becomes": [1], "why": "so"},
    ],
    "losses": [],
    "message": {"payload": "", "payload_encoding": "string", "properties": {}, "headers": {}},
}


def test_a_message_from_options(run: Run, canned: Canned) -> None:
    canned.answer(200, ANSWER)
    options = ["--to", "0-10", "--property", "type=order", "--header", "n:=3", "--release", "CC", "--strip"]
    result = run("explain", "--url", canned.url, *options)
    assert result.exit_code == 0, result.stderr
    assert canned.asked[0][:2] == ("POST", "/v1/translations:explain")
    assert canned.asked[0][3] == {
        "message": {"properties": {"type": "order"}, "headers": {"n": 3}},
        "release_headers": ["CC"],
        "strip": True,
        "to": "0-10",
    }
    assert result.stdout.splitlines()[1].split() == ["type", "same", "order", "order"]
    assert "y" * 40 + "…" in result.stdout
    assert result.stderr == "nothing is lost towards 0-10 (qpid)\n"


def test_a_message_from_a_file_or_stdin(run: Run, canned: Canned, tmp_path: Path) -> None:
    canned.answer(200, {**ANSWER, "losses": [{"name": "property", "field": "type", "detail": "gone"}]})
    message = {"properties": {"type": "a", "app_id": "b"}, "headers": None}
    file = tmp_path / "message.json"
    file.write_text(json.dumps(message))
    options = ["--to", "local", "--from", "0-8", "--product", "qpid", "--property", "type=c"]
    result = run("explain", "--url", canned.url, str(file), *options)
    assert result.stderr == "lost: type (property): gone\n"
    body = canned.asked[0][3]
    assert body["message"] == {"properties": {"type": "c", "app_id": "b"}, "headers": None}
    assert (body["broker"], body["from"], body["product"]) == ("local", "0-8", "qpid")
    assert "to" not in body
    result = run("explain", "--url", canned.url, "-", "--to", "0-8", "--json", input=json.dumps(message).encode())
    assert json.loads(result.stdout)["to"] == "0-10"
    assert canned.asked[1][3]["message"] == message


def test_a_message_that_cannot_be_sent(run: Run, canned: Canned) -> None:
    canned.answer(200, {**{key: value for key, value in ANSWER.items() if key != "message"}})
    result = run("explain", "--url", canned.url, "--to", "0-8")
    assert result.stderr == "it cannot be sent there\n"


def test_what_is_wrong(run: Run, canned: Canned, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for file, said in (("absent.json", "No such file"), ("no.json", "not JSON"), ("list.json", "not a JSON object")):
        result = run("explain", "--url", canned.url, str(tmp_path / file), "--to", "0-8")
        assert (result.exit_code, said in result.stderr) == (commands.USAGE, True), result.stderr
    assert run("explain", "--url", canned.url).exit_code == commands.USAGE
    canned.answer(404, {"code": "broker_not_found", "detail": "there is no broker 'x'"})
    assert run("explain", "--url", canned.url, "--to", "x").exit_code == commands.NOT_FOUND


def test_against_a_gateway_that_runs(run: Run, gateway: str) -> None:
    result = run("explain", "--url", gateway, "--to", "local-0-10", "--property", "message_id=m-1")
    assert result.exit_code == 0, result.stderr
    assert "message_id     mapped" in result.stdout
    assert result.stderr == "nothing is lost towards 0-10 (other)\n"
