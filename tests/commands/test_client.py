"""What every verb that asks a running gateway shares."""

from __future__ import annotations

import json
import re
import socket

import pytest

from gateway import commands
from gateway.api.http.problems import PROBLEMS
from gateway.commands.client import ADVICE, DEFAULT_URL, printable, problem_text, segment
from tests.commands.conftest import Canned, Run
from tests.test_doc_examples import verb_of

PROBLEM = {
    "type": "/docs/errors#unroutable",
    "code": "unroutable",
    "detail": "no queue took it",
    "advice": "Bind a queue.",
    "errors": [{"pointer": "/payload", "detail": "too long"}],
    "id": "0197",
}


@pytest.mark.parametrize(
    ("http", "status"),
    [
        (400, commands.REFUSED),
        (401, commands.REFUSED),
        (404, commands.NOT_FOUND),
        (422, commands.REFUSED),
        (500, commands.FAILED),
        (503, commands.UNREACHABLE),
        (504, commands.FAILED),
    ],
)
def test_a_problem_is_told_and_has_its_exit_status(run: Run, canned: Canned, http: int, status: int) -> None:
    canned.answer(http, PROBLEM)
    result = run("brokers", "--url", canned.url)
    assert result.exit_code == status
    assert not result.stdout
    assert result.stderr.splitlines() == [
        "gateway: no queue took it [unroutable]",
        "  payload: too long",
        "  The message is 0197.",
    ]


def test_how_to_reach_a_gateway_may_stand_before_the_verb(
    run: Run, canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.answer(200, {"brokers": []})
    monkeypatch.setenv("GATEWAY_URL", "http://127.0.0.1:1")
    before = run("--url", canned.url, "--api-key", "secret", "brokers")
    assert before.exit_code == 0, before.stderr
    assert canned.asked[-1][2]["authorization"] == "Bearer secret"
    both = run("--url", "http://127.0.0.1:1", "brokers", "--url", canned.url)
    assert both.exit_code == 0, "what stands behind the verb counts"
    no_use = run("--url", canned.url, "serve")
    assert (no_use.exit_code, "serve asks no running gateway" in no_use.stderr) == (commands.USAGE, True)
    missing = run("--key", "key.pem", "brokers", "--url", canned.url)
    assert "--cert is missing" in missing.stderr


@pytest.mark.parametrize("code", ["invalid_parameter", "invalid_request", "invalid_value"])
def test_a_value_that_the_gateway_does_not_take_is_wrong_usage(run: Run, canned: Canned, code: str) -> None:
    canned.answer(422, {**PROBLEM, "code": code})
    assert run("brokers", "--url", canned.url).exit_code == commands.USAGE


@pytest.mark.parametrize(
    ("former", "group"),
    [("bridge orders --once", ""), ("replay show x", ""), ("bridges get orders", "bridges"), ("taps get x", "taps")],
)
def test_former_names_still_work_and_are_in_no_list(run: Run, canned: Canned, former: str, group: str) -> None:
    canned.answer(404, {**PROBLEM, "code": "not_found"})
    assert run(*former.split(), "--url", canned.url).exit_code == commands.NOT_FOUND
    assert not re.search(r"^  (bridge|replay|get)  ", run(*group.split(), "--help").stdout, re.MULTILINE)


def test_without_a_culprit_there_is_advice(run: Run, canned: Canned) -> None:
    canned.answer(422, {**PROBLEM, "errors": []})
    assert (
        "\n  Bind a queue: gateway bindings add. Or let it go: --no-mandatory\n"
        in run("brokers", "--url", canned.url).stderr
    )


@pytest.mark.parametrize("code", ["unauthorized", "forbidden"])
def test_a_missing_key_is_told_in_words_of_the_command_line(run: Run, canned: Canned, code: str) -> None:
    canned.answer(401, {"code": code, "detail": "no", "advice": "Send `Authorization: Bearer KEY`."})
    told = run("brokers", "--url", canned.url).stderr
    assert "--api-key KEY, or GATEWAY_API_KEY" in told
    assert "Authorization" not in told


def told_for(code: str) -> str:
    """What the command line says to do about a problem."""
    problem = {"code": code, "detail": "no", "advice": PROBLEMS[code].advice}
    return problem_text(PROBLEMS[code].status, problem).partition("\n")[2]


@pytest.mark.parametrize("code", PROBLEMS)
def test_advice_is_in_words_of_the_command_line(code: str) -> None:
    """Headers, methods, paths and members are for those who speak HTTP."""
    told = told_for(code)
    assert set(ADVICE) <= set(PROBLEMS)
    assert not re.search(r"\b(GET|POST|PUT|PATCH|DELETE|Retry-After|If-Match|ETag|detail)\b|/v1/|errors\[|\": ", told)
    for command in re.findall(r"gateway [a-z][^:.]*", told):
        verb_of(command.split()[1:])


def test_a_message_is_looked_for_by_the_id_of_its_publisher_too() -> None:
    assert "gateway messages --message-id ID" in told_for("message_not_found")
    assert told_for("local") == "", "its sentence says all"


def test_an_answer_that_is_no_problem_document(run: Run, canned: Canned) -> None:
    canned.answer(502, [])
    assert run("brokers", "--url", canned.url).stderr == "gateway: HTTP status 502\n"


def test_an_answer_that_is_no_json(run: Run, canned: Canned) -> None:
    canned.answer(200, b"<html>")
    result = run("brokers", "--url", canned.url)
    assert result.exit_code == commands.FAILED
    assert "not with JSON" in result.stderr


def test_nobody_is_there(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run("brokers", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert result.exit_code == commands.UNREACHABLE
    assert "Is `gateway serve` running?" in result.stderr


def test_a_host_that_is_none(run: Run) -> None:
    assert run("brokers", "--url", "http://[").exit_code == commands.UNREACHABLE


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "nonsense", "127.0.0.1:8080"])
def test_a_url_that_is_none_is_wrong_usage(run: Run, url: str) -> None:
    result = run("brokers", "--url", url)
    assert result.exit_code == commands.USAGE
    assert f"--url {url}" in result.stderr
    assert DEFAULT_URL in result.stderr


def test_the_key_is_sent_and_the_environment_is_asked(
    run: Run, canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.answer(200, {"brokers": []})
    monkeypatch.setenv("GATEWAY_URL", canned.url + "/")
    monkeypatch.setenv("GATEWAY_API_KEY", "secret")
    assert run("brokers").exit_code == 0
    ((method, path, headers, _),) = canned.asked
    assert (method, path, headers["authorization"]) == ("GET", "/v1/brokers", "Bearer secret")


@pytest.mark.parametrize("key", ["secr\u00e9t", "secret\n"])
def test_a_key_that_http_cannot_carry_is_refused_and_not_shown(run: Run, canned: Canned, key: str) -> None:
    result = run("brokers", "--url", canned.url, "--api-key", key)
    assert result.exit_code == commands.USAGE
    assert "the API key (--api-key, GATEWAY_API_KEY) has a character that is not printable ASCII" in result.stderr
    assert "secr" not in result.stderr


@pytest.mark.parametrize(
    ("name", "path"),
    [("orders", "orders"), ("", "amq.default"), ("a/b:c%é d", "a%2Fb%3Ac%25%C3%A9%20d"), ("\udcff", "%FF")],
)
def test_names_in_paths(name: str, path: str) -> None:
    assert segment(name) == path


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (False, "no"), (3, "3"), ("a\x1b[2Jb\n", "a\\x1b[2Jb\\n"), ("é ✓", "é ✓")],
)
def test_cells_never_move_the_cursor(value: object, text: str) -> None:
    assert printable(value) == text


@pytest.mark.parametrize("noun", ["bridges", "endpoints", "subscriptions", "taps"])
def test_an_empty_list_says_so(run: Run, canned: Canned, noun: str) -> None:
    canned.answer(200, {noun: []})
    found = run(noun, "list", "--url", canned.url)
    assert (found.exit_code, found.stderr) == (0, f"no {noun} yet\n")
    assert len(found.stdout.splitlines()) == 1, "the heads, for those who read them"
    assert json.loads(run(noun, "list", "--json", "--url", canned.url).stdout) == {noun: []}
