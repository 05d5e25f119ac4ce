"""What every verb that talks to a running gateway shares: its options and one HTTP exchange.

An answer that is no success becomes a :class:`~gateway.commands.Failure` here, once, with the problem's sentence,
its advice and the exit status of :func:`status_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from gateway.commands import FAILED, NOT_FOUND, REFUSED, UNREACHABLE, Failure
from gateway.terminal import note, print_json, print_table, printable

if TYPE_CHECKING:
    import httpx

__all__ = [
    "DEFAULT_URL", "TIMEOUT", "Client", "client_options", "note", "print_json", "print_table", "printable",
    "problem_text", "segment", "status_of", "unreachable",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT = 60.0
"""How long one exchange may take, in seconds, besides the time that it was asked to wait."""


def client_options(function: F) -> F:
    """``--url``, ``--api-key`` and ``--json``; the verb gets ``client`` and ``as_json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, exactly as the API answers."),
        click.option(
            "--api-key", envvar="GATEWAY_API_KEY", show_envvar=True, help="API key, where the gateway has any."
        ),
        click.option(
            "--url",
            envvar="GATEWAY_URL",
            default=DEFAULT_URL,
            show_default=True,
            show_envvar=True,
            help="Where the gateway is.",
        ),
    ):
        function = option(function)
    return function


def status_of(status: int) -> int:
    """The exit status of an HTTP status that is no success."""
    if status == 404:
        return NOT_FOUND
    if status == 503:
        return UNREACHABLE
    return REFUSED if 400 <= status < 500 else FAILED


class Client:
    """A running gateway, asked over HTTP."""

    def __init__(self, url: str, api_key: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._transport = transport

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> Any:
        """One exchange; the decoded answer. ``wait`` is how long the gateway was asked to take, in seconds.

        Raises:
            Failure: the gateway cannot be reached, or answered with a problem.
        """
        return self._decoded(self._exchange(method, path, body, headers, query, wait))

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        """The pages of a list, one exchange each.

        Raises:
            Failure: as in ``ask``.
        """
        answer = self._exchange("GET", path, None, None, query, 0.0)
        while True:
            yield self._decoded(answer)
            following = answer.links.get("next", {}).get("url")
            if following is None:
                return
            answer = self._exchange("GET", following, None, None, None, 0.0)

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, str], silence: float
    ) -> Iterator[Iterator[str]]:
        """The lines of an answer that goes on, as they come.

        Raises:
            Failure: the gateway answered with a problem.
            httpx.TransportError: it cannot be reached, is gone, or said nothing for ``silence`` seconds.
        """
        import httpx

        timeout = httpx.Timeout(silence, connect=TIMEOUT)
        with (
            httpx.Client(transport=self._transport, trust_env=False, timeout=timeout) as client,
            client.stream("GET", self.url + path, headers=self._headers(headers), params=query) as answer,
        ):
            if not answer.is_success:
                answer.read()
                self._decoded(answer)  # raises what is wrong
            yield answer.iter_lines()

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        sent = dict(headers or {})
        if self._api_key:
            sent["authorization"] = f"Bearer {self._api_key}"
        return sent

    def _exchange(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None,
        query: Mapping[str, str] | None,
        wait: float,
    ) -> httpx.Response:
        import httpx

        try:
            with httpx.Client(transport=self._transport, trust_env=False, timeout=TIMEOUT + wait) as client:
                return client.request(method, self.url + path, json=body, headers=self._headers(headers), params=query)
        except httpx.TimeoutException:
            raise Failure(f"no answer from {self.url} in {TIMEOUT + wait:.0f} s", FAILED) from None
        except httpx.ConnectError as error:
            raise unreachable(self.url, error) from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Failure(f"{self.url}: {str(error) or type(error).__name__}", UNREACHABLE) from None

    def _decoded(self, answer: httpx.Response) -> Any:
        try:
            value = answer.json() if answer.content else None
        except ValueError:
            raise Failure(f"{self.url} answered {answer.status_code}, but not with JSON: no gateway?") from None
        if answer.is_success:
            return value
        problem = value if isinstance(value, dict) else {}
        raise Failure(problem_text(answer.status_code, problem), status_of(answer.status_code))


def unreachable(url: str, error: Exception) -> Failure:
    """Nobody is there."""
    return Failure(f"{url} cannot be reached: {error}. Is `gateway serve` running?", UNREACHABLE)


def problem_text(status: int, problem: Mapping[str, Any]) -> str:
    """A problem as a sentence and its culprits, for stderr."""
    said = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
    lines = [f"{said} [{problem['code']}]" if "code" in problem else str(said)]
    # The advice is for those who do not know where to look.
    lines += [f"  {error['pointer']}: {error['detail']}" for error in problem.get("errors", ())] or [
        f"  {advice}" for advice in (problem.get("advice"),) if advice
    ]
    if problem.get("id"):
        lines.append(f"  The message is {problem['id']}.")
    return "\n".join(lines)


def segment(name: str) -> str:
    """A name as one segment of a path. The default exchange, whose name is empty, is ``amq.default``."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="") or "amq.default"
