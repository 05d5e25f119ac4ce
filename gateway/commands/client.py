"""What every verb that talks to a running gateway shares: its options and one HTTP exchange.

The options of TLS are no arguments of the verbs: they stand in click's context, where :class:`ApiClient` finds them.

An answer that is no success becomes a :class:`~gateway.commands.Failure` here, once, with the problem's sentence,
its advice and the exit status of :func:`status_of`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands import (
    FAILED,
    GIVEN_BEFORE,
    NOT_FOUND,
    REACH,
    REFUSED,
    UNREACHABLE,
    USAGE,
    Failure,
    option_name,
    variable_of,
)
from gateway.terminal import note, output_options, print_json, print_table, printable
from gateway.validation import culprits

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = [
    "DEFAULT_URL", "TIMEOUT", "ApiClient", "Tls", "client_options", "note", "print_json", "print_table", "printable",
    "problem_text", "segment", "status_of", "unreachable",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT = 60.0
"""How long one exchange may take, in seconds, besides the time that it was asked to wait."""
TLS_FILES: Final = "gateway.tls"
"""Where click's context has them."""
TLS_OPTION: Final = "tls_"
"""How the names of these options begin for click: ``key`` alone is an argument elsewhere."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files (PEM) for a gateway that is reached over TLS; empty: none."""

    ca: str = ""
    """Authorities that may sign its certificate, in place of the public ones."""
    cert: str = ""
    """Our certificate."""
    key: str = ""
    """Its key; empty: it is in ``cert``."""

    def context(self) -> ssl.SSLContext | bool:
        """What httpx verifies with.

        Raises:
            Failure: a file is missing, or is not what it should be.
        """
        if not self.ca and not self.cert:
            if self.key:
                raise Failure("--key is a key without a certificate: --cert is missing", USAGE)
            return True
        import ssl

        name = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            name = f"{self.cert} {self.key}".strip()
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None, password=_no_password)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise Failure(f"{name}: {why}", USAGE) from None
        return context


def _no_password() -> str:
    raise ValueError("the key has a password, which we do not know")  # else OpenSSL would ask the terminal


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    found = _given(ctx, parameter, value)
    ctx.meta.setdefault(TLS_FILES, {})[str(parameter.name).removeprefix(TLS_OPTION)] = found or ""


def _given(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """What stands behind the verb; else before it; else what the environment says."""
    if ctx.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE:
        return value
    found: str | None = ctx.meta.get(GIVEN_BEFORE, {}).get(option_name(parameter), value)
    return found


def tls_files() -> Tls:
    """Those that the command line, or the environment, names."""
    context = click.get_current_context(silent=True)
    return Tls(**context.meta.get(TLS_FILES, {})) if context is not None else Tls()


def client_options(function: F) -> F:
    """``--url``, ``--api-key``, ``--output`` and ``--json``, which the verb gets, and ``--ca``, ``--cert`` and
    ``--key``, which :class:`ApiClient` finds without help.

    ``gateway --help`` describes how to reach a gateway; the help of a verb shows one line of that."""
    for option in (
        *(
            click.option(
                f"--{name}",
                f"{TLS_OPTION}{name}",
                envvar=variable_of(name),
                metavar=REACH[name][0],
                help=REACH[name][1],
                hidden=True,
                expose_value=False,
                callback=_keep,
            )
            for name in ("key", "cert", "ca")
        ),
        output_options,
        click.option(
            "--api-key",
            envvar=variable_of("api-key"),
            help=REACH["api-key"][1],
            hidden=True,
            callback=_given,
        ),
        click.option(
            "--url",
            envvar=variable_of("url"),
            default=DEFAULT_URL,
            show_default=True,
            show_envvar=True,
            callback=_given,
            help="Where the gateway is. `gateway --help` has --api-key and what TLS needs.",
        ),
    ):
        function = option(function)
    return function


WRONG_VALUES: Final = frozenset({"invalid_parameter", "invalid_request", "invalid_value"})
"""Codes of problems with a value of the query or of the body, which an option or a file of settings has given."""


def status_of(status: int, code: str = "") -> int:
    """The exit status of an HTTP status that is no success, and of the problem's code: a value of an option or of a
    file that the gateway does not take is wrong usage, as one that is found here."""
    if code in WRONG_VALUES:
        return USAGE
    if status == 404:
        return NOT_FOUND
    if status == 503:
        return UNREACHABLE
    return REFUSED if 400 <= status < 500 else FAILED


class ApiClient:
    """A running gateway, asked over HTTP."""

    def __init__(
        self, url: str, api_key: str | None, transport: httpx.BaseTransport | None = None, tls: Tls | None = None
    ) -> None:
        """``tls``: instead of what the command line names."""
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._transport = transport
        self._tls = tls if tls is not None else tls_files()

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
            self._open(timeout) as client,
            client.stream("GET", self.url + path, headers=self._headers(headers), params=query) as answer,
        ):
            if not answer.is_success:
                answer.read()
                self._decoded(answer)  # raises what is wrong
            yield answer.iter_lines()

    def _open(self, timeout: httpx.Timeout | float) -> httpx.Client:
        import httpx

        return httpx.Client(transport=self._transport, trust_env=False, timeout=timeout, verify=self._tls.context())

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        sent = dict(headers or {})
        if self._api_key:
            if not (self._api_key.isascii() and self._api_key.isprintable()):
                # HTTP cannot carry it; and whoever says so further down shows it.
                raise Failure(
                    "the API key (--api-key, GATEWAY_API_KEY) has a character that is not printable ASCII: a line "
                    "break at its end, perhaps",
                    USAGE,
                )
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
            with self._open(TIMEOUT + wait) as client:
                return client.request(method, self.url + path, json=body, headers=self._headers(headers), params=query)
        except httpx.TimeoutException:
            raise Failure(f"no answer from {self.url} in {TIMEOUT + wait:.0f} s", FAILED) from None
        except httpx.ConnectError as error:
            raise unreachable(self.url, error) from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise Failure(f"--url {self.url}: {error} Give a URL such as {DEFAULT_URL}.", USAGE) from None
        except httpx.TransportError as error:
            hint = _hint(str(error))
            raise Failure(f"{self.url}: {str(error) or type(error).__name__}{hint}", UNREACHABLE) from None

    def _decoded(self, answer: httpx.Response) -> Any:
        try:
            value = answer.json() if answer.content else None
        except ValueError:
            raise Failure(f"{self.url} answered {answer.status_code}, but not with JSON: no gateway?") from None
        if answer.is_success:
            return value
        problem = value if isinstance(value, dict) else {}
        status = status_of(answer.status_code, str(problem.get("code")))
        raise Failure(problem_text(answer.status_code, problem), status)


def unreachable(url: str, error: Exception) -> Failure:
    """Nobody is there, or not who we think it is."""
    hint = _hint(str(error)) or ". Is `gateway serve` running?"
    return Failure(f"{url} cannot be reached: {error}{hint}", UNREACHABLE)


def _hint(said: str) -> str:
    """What to do about an error of TLS."""
    low = said.lower().replace("_", " ")
    return next((f".\n  {text}" for words, text in HINTS if words in low), "")


HINTS: Final = (
    ("hostname mismatch", "Use one of the names in its certificate in --url."),
    ("ip address mismatch", "Use one of the names in its certificate in --url."),
    ("certificate has expired", "Its certificate must be renewed."),
    ("certificate verify failed", "Name the authority that signed its certificate: --ca FILE, or GATEWAY_CA."),
    ("certificate required", "It wants a certificate of us: --cert FILE and --key FILE."),
    ("wrong version number", "It does not speak TLS there: http:// may be meant."),
)
"""Part of what OpenSSL says, in small letters -> what to do about it."""


ADVICE: Final = {
    "unauthorized": "Name a valid API key: --api-key KEY, or GATEWAY_API_KEY. For a certificate: --cert and --key.",
    "forbidden": "Name a key that has the scope: --api-key KEY, or GATEWAY_API_KEY.",
    "route_not_found": "Check --url: another program, or another release of the gateway, may answer there.",
    "broker_not_found": "List the brokers: gateway brokers",
    "subscription_not_found": "List the subscriptions: gateway subscriptions list",
    "no_such_bridge": "List the bridges: gateway bridges list",
    "no_such_tap": "List the taps: gateway taps list",
    "no_such_front": "List the fronts: gateway fronts list",
    "no_such_front_client": "List the clients of the front: gateway fronts clients NAME",
    "endpoint_not_found": "List the endpoints: gateway endpoints list",
    "broker_in_use": "Delete what works with it, or have that use another broker.",
    "endpoint_in_use": "Delete a subscription: gateway subscriptions delete NAME",
    "replay_not_found": "List the replays: gateway replays list",
    "delivery_not_found": "List the dead messages: gateway dlq list",
    "message_not_found": "List the messages that the ledger knows: gateway messages. By the id of its publisher: "
    "gateway messages --message-id ID",
    "no_such_resource": "List what there is: gateway keys list",
    "run_not_found": "List the runs: gateway pipeline status",
    "precondition_required": "Replace the other settings: --replace",
    "broker_unavailable": "See how the broker does: gateway brokers NAME",
    "protocol_mismatch": "Ask what the broker speaks: gateway probe URL",
    "unsupported": "See what the broker can do: gateway brokers NAME --json",
    "unroutable": "Bind a queue: gateway bindings add. Or let it go: --no-mandatory",
    "no_dead_letter_destination": "Name one in the subscription: dead_letter_routing_key or dead_letter_exchange.",
    "outcome_unknown": "Repeat with the same --idempotency-key.",
    "not_recorded": "The message may be safe; repeat with the same --idempotency-key.",
    "access_refused": "Give the login of the broker's URL that permission.",
    "budget_exceeded": "See which clients hold most: gateway budgets",
    "certificate_refused": "Correct the broker's settings of TLS, then see: gateway doctor",
    "token_refused": "Correct the `auth` of the endpoint: gateway endpoints put",
    "method_not_implemented": "Use another broker, or do without.",
    "etag_mismatch": "It was changed meanwhile. Look at it, and repeat.",
    "log_range_ahead": "Ask for less: the log does not go so far yet.",
    **dict.fromkeys(
        ("rate_limited", "overloaded", "idempotency_key_running", "peer_unavailable"), "Wait a moment, and repeat."
    ),
    "ledger_unavailable": "Look at the ledger: gateway doctor",
    "ledger_damaged": "See what is damaged: gateway doctor --only ledger",
    "ledger_full": "Look at the disk of the ledger: gateway doctor",
    "commit_unknown": "Look whether it was done; if not, repeat it.",
}
"""Code of a problem -> what to do about it here, in place of what it says to those who speak HTTP."""


IN_SENTENCE: Final = re.compile(r"\bdetail\b|errors\[\]|\bAllow header\b")
"""In the advice of a problem: what it says stands in the sentence above it already."""


def problem_text(status: int, problem: Mapping[str, Any]) -> str:
    """A problem as a sentence and its culprits, for stderr."""
    said = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
    lines = [f"{said} [{problem['code']}]" if "code" in problem else str(said)]
    # The advice is for those who do not know where to look.
    lines += [f"  {each}" for each in culprits(problem)]
    advice = ADVICE.get(problem.get("code", "")) or problem.get("advice") or ""
    if advice and not problem.get("errors") and not IN_SENTENCE.search(advice):
        lines.append(f"  {advice}")
    if problem.get("id"):
        lines.append(f"  The message is {problem['id']}.")
    return "\n".join(lines)


def dead_letter_text(told: Mapping[str, Any]) -> str:
    """What a dead letter says of itself, in a line."""
    names = {"queue": "queue", "exchange": "exchange", "routing_key": "routing key"}
    told = {**told, "exchange": told["exchange"] if told["exchange"] is None else told["exchange"] or DEFAULT_EXCHANGE}
    known = [f"{what} {told[name]!r}" for name, what in names.items() if told[name] is not None]
    where = f" It came from {', '.join(known)}." if known else ""
    since = f" since {told['at']}" if told["at"] else ""
    return printable(f"Dead letter{since} [{told['code']}]: {told['reason']}.{where}")


def segment(name: str) -> str:
    """A name as one segment of a path. The default exchange, whose name is empty, is ``amq.default``."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="") or "amq.default"
