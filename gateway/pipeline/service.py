"""The gateway, asked by a job: JSON over HTTP, and what its answers mean as errors.

A gateway that never answered is a wrong URL, which is reported at once. One that was there and went away is waited for,
``pipeline.unavailable_timeout`` seconds long: it may be restarting. A request that may be sent twice without harm is
repeated; a POST only where nothing of it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import (
    GatewayError,
    NoSuchResource,
    PipelineFault,
    ServiceRefused,
    ServiceUnreachable,
    error_of,
)
from gateway.pipeline.settings import Pipeline
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import block, monotonic_time
from gateway.validation import culprits

if TYPE_CHECKING:
    import httpx

PAUSE_FIRST: Final = 0.2
PAUSE_MAX: Final = 5.0
"""First and longest pause before it is asked again, in seconds."""
REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
BUSY: Final = frozenset({429, 502, 503, 504})
"""Statuses after which it is asked again."""


class Service:
    """A gateway, over one connection that is kept."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = monotonic_time,
        sleep: Callable[[float], None] = block,
    ) -> None:
        self._pipeline = pipeline
        self._transport = transport
        self._clock, self._sleep = clock, sleep
        self._client: httpx.Client | None = None
        self._was_there = False

    @property
    def url(self) -> str:
        """Where it is."""
        return self._pipeline.url

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One exchange; the decoded answer.

        Raises:
            ServiceUnreachable: it does not answer, or went away and stayed away.
            ServiceRefused: it said no.
            GatewayError: what its problem's code stands for, where that is an error of the gateway (``CursorOwned``,
                ``NoSuchResource`` and those below it, ...).
        """
        return decoded(self.url, self.exchange(method, path, json=body, params=query, headers=headers))

    def exchange(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One exchange, repeated while the gateway is away and it does no harm; the answer, with any status."""
        import httpx

        since: float | None = None
        backoff = Backoff(PAUSE_FIRST, PAUSE_MAX)
        while True:
            try:
                answer = self._open().request(method, self.url + path, **options)
                self._was_there = True
                if answer.status_code not in BUSY or method not in REPEATABLE:
                    return answer
                why = f"it answers {answer.status_code}"
            except (httpx.TransportError, httpx.InvalidURL) as error:
                why = str(error) or type(error).__name__
                nothing_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not self._was_there or not (nothing_sent or method in REPEATABLE):
                    raise unreachable(self.url, why) from None
                answer = None
            now = self._clock()
            since = now if since is None else since
            if now - since >= self._pipeline.settings.unavailable_timeout:
                if answer is not None:
                    return answer
                raise ServiceUnreachable(f"{self.url} went away {now - since:.0f} s ago and stayed away: {why}")
            self._sleep(backoff.next())

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> httpx.Client:
        import httpx

        if self._client is None:
            headers = {"authorization": f"Bearer {self._pipeline.api_key}"} if self._pipeline.api_key else {}
            self._client = httpx.Client(
                transport=self._transport, trust_env=False, timeout=self._pipeline.settings.timeout, headers=headers
            )
        return self._client


def unreachable(url: str, why: str) -> ServiceUnreachable:
    """Nobody is there."""
    return ServiceUnreachable(f"{url} cannot be reached: {why}. Is `gateway serve` running there?")


def decoded(url: str, answer: httpx.Response) -> Any:
    """The value that an answer holds.

    Raises:
        GatewayError: as :meth:`Service.ask` says.
    """
    try:
        value = answer.json() if answer.content else None
    except ValueError:
        raise ServiceRefused(f"{url} answered {answer.status_code}, but not with JSON: that is no gateway") from None
    if answer.is_success:
        return value
    raise error_in(url, answer.status_code, value if isinstance(value, dict) else {})


def error_in(url: str, status: int, problem: Mapping[str, Any]) -> GatewayError:
    """The error that a problem stands for."""
    said = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
    more = "; ".join(culprits(problem))
    text = f"{url}: {said}{f' ({more})' if more else ''}"
    code = str(problem.get("code", ""))
    known = error_of(code, text)
    if type(known) is not GatewayError:
        return known
    if status == 401:
        return ServiceRefused(f"{text} Set GATEWAY_API_KEY or pipeline.api_key_file.")
    if status == 404 and code != "route_not_found":
        return NoSuchResource(text)
    if status in BUSY:
        return ServiceUnreachable(text)
    if 400 <= status < 500:
        return ServiceRefused(f"{text} [{code}]" if code else text)
    return PipelineFault(f"{text} [{code}]" if code else text)
