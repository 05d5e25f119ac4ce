"""The gateway as a job asks it: what its answers mean, and how long it is waited for."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from gateway import errors
from gateway.pipeline.service import PAUSE_MAX, Service
from gateway.pipeline.settings import Pipeline
from tests.pipeline.unit.board import URL, Board, problem


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def board() -> Board:
    return Board()


def patient(board: Board, clock: Clock, seconds: float = 60.0) -> Service:
    """A service that waits so long for a gateway that went away."""
    settings = msgspec.structs.replace(Pipeline().settings, unavailable_timeout=seconds)
    return board.service(Pipeline(url=URL, settings=settings), clock=clock, sleep=clock.sleep)


def test_an_answer_is_its_value(board: Board) -> None:
    with board.service() as service:
        assert service.ask("GET", "/v1/pipeline/runs") == {"runs": []}


def test_the_key_goes_along(board: Board) -> None:
    seen: list[str | None] = []
    board.before = lambda request: seen.append(request.headers.get("authorization"))  # type: ignore[func-returns-value]
    board.service(Pipeline(url=URL, api_key="k")).ask("GET", "/v1/pipeline/runs")
    board.service().ask("GET", "/v1/pipeline/runs")
    assert seen == ["Bearer k", None]


def test_a_wrong_url_is_told_at_once() -> None:
    clock = Clock()
    service = Service(Pipeline(url="http://127.0.0.1:9"), clock=clock, sleep=clock.sleep)
    with pytest.raises(errors.ServiceUnreachable, match=r"127\.0\.0\.1:9 cannot be reached: .*gateway serve"):
        service.ask("GET", "/v1/pipeline/runs")
    assert clock.slept == []


def test_one_that_went_away_is_waited_for(board: Board) -> None:
    clock = Clock()
    service = patient(board, clock)
    service.ask("GET", "/v1/pipeline/runs")

    def away(_: httpx.Request) -> None:
        if clock.now < 30:
            raise httpx.ConnectError("refused")

    board.before = away  # type: ignore[assignment]
    assert service.ask("GET", "/v1/pipeline/runs") == {"runs": []}
    assert clock.now >= 30
    assert max(clock.slept) <= PAUSE_MAX


def test_one_that_stays_away_is_given_up(board: Board) -> None:
    clock = Clock()
    service = patient(board, clock, 20)
    service.ask("GET", "/v1/pipeline/runs")

    def away(_: httpx.Request) -> None:
        raise httpx.ReadTimeout("no answer")

    board.before = away  # type: ignore[assignment]
    with pytest.raises(errors.ServiceUnreachable, match=r"went away 2\d s ago and stayed away: no answer"):
        service.ask("GET", "/v1/pipeline/runs")


def test_a_post_that_may_have_been_heard_is_not_said_again(board: Board) -> None:
    clock = Clock()
    service = patient(board, clock)
    service.ask("GET", "/v1/pipeline/runs")
    asked = len(board.asked)

    def cut(_: httpx.Request) -> None:
        raise httpx.RemoteProtocolError("cut")

    board.before = cut  # type: ignore[assignment]
    with pytest.raises(errors.ServiceUnreachable, match="cut"):
        service.ask("POST", "/v1/log/cursors/a:claim", body={})
    assert len(board.asked) == asked + 1


def test_a_busy_one_is_asked_again_and_then_said_to_be_busy(board: Board) -> None:
    clock = Clock()
    service = patient(board, clock, 10)
    board.before = lambda request: problem(503, "overloaded", "too much to do")
    with pytest.raises(errors.Overloaded, match="too much to do"):
        service.ask("GET", "/v1/pipeline/runs")
    assert clock.now >= 10


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "cursor_owned", errors.CursorOwned),
        (404, "broker_not_found", errors.NoSuchBroker),
        (404, "something_not_found", errors.NoSuchResource),
        (401, "unauthorized", errors.ServiceRefused),
        (403, "forbidden", errors.ServiceRefused),
        (404, "route_not_found", errors.ServiceRefused),
        (422, "invalid_request", errors.ServiceRefused),
        (500, "whatever", errors.PipelineFault),
    ],
)
def test_a_problem_is_the_error_that_its_code_stands_for(
    board: Board, status: int, code: str, kind: type[errors.GatewayError]
) -> None:
    board.before = lambda request: problem(status, code, "the sentence")
    with pytest.raises(errors.GatewayError, match=f"^{URL}: the sentence") as caught:
        board.service().ask("GET", "/v1/pipeline/runs")
    assert type(caught.value) is kind


def test_culprits_are_named(board: Board) -> None:
    body = {"code": "invalid_request", "detail": "wrong", "errors": [{"pointer": "/job", "detail": "too long"}]}
    board.before = lambda request: httpx.Response(422, json=body)
    with pytest.raises(errors.ServiceRefused, match=r"wrong \(job: too long\) \[invalid_request\]"):
        board.service().ask("PUT", "/v1/pipeline/runs/a", body={})


def test_what_does_not_speak_json_is_no_gateway(board: Board) -> None:
    board.before = lambda request: httpx.Response(200, text="<html>")
    with pytest.raises(errors.ServiceRefused, match="answered 200, but not with JSON: that is no gateway"):
        board.service().ask("GET", "/v1/pipeline/runs")
