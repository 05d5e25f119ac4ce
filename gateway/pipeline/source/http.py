"""The gateway over HTTP, as a reader or a writer in any process of Spark asks it.

The standard library's client: a worker of Spark is started for one task, and has no time for imports. One object is one
connection and belongs to one thread. A failure that a repeat may cure is :class:`Away`, and the caller decides how long
to repeat; all else is one of the gateway's errors, with the sentence that the gateway gave.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from gateway.errors import ConfigurationError, CursorOwned, GatewayError, ServiceRefused, ServiceUnreachable
from gateway.pipeline.source.options import Connection, api_key
from gateway.pipeline.source.retry import Retry

ARROW: Final = "application/vnd.apache.arrow.stream"
NDJSON: Final = "application/x-ndjson"
RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
PROBLEM_MAX: Final = 64 << 10
"""Octets of a problem that are looked at."""
DOCUMENT_MAX: Final = 64 << 20
"""Largest document that is read, in octets."""


class Away(Exception):
    """No answer, half an answer, or one that says: later. ``connected``: somebody was there."""

    def __init__(self, text: str, retry_after: float = 0.0, *, connected: bool = True) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.connected = connected


class RangeGone(Exception):
    """410: what was asked for begins before the log does."""


class Http:
    """One connection to the gateway, made when it is needed, and made again when it broke."""

    def __init__(self, options: Connection) -> None:
        """Nothing is sent yet.

        Raises:
            ConfigurationError: the file of the API key or of the certificates cannot be read.
        """
        self.url = options.url.rstrip("/")
        self.unavailable_timeout = options.unavailable_timeout
        parts = urlsplit(self.url)
        self._prefix = parts.path
        self._host = parts.hostname or ""
        self._port = parts.port
        self._timeout = options.timeout
        self._context = _context(options.ca_file) if parts.scheme == "https" else None
        self._headers = {"user-agent": "amqp-gateway-spark"}
        key = api_key(options)
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._connection: http.client.HTTPConnection | None = None
        self._was_there = False

    def close(self) -> None:
        """Hang up. The next request connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ----------------------------------------------------------------------------------------------- documents

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        retry: Retry | None = None,
    ) -> Any:
        """One exchange of JSON, repeated while the gateway is away: only for what may be sent twice.

        Args:
            retry: how long; None: as the options say, once somebody has been there.

        Raises:
            ServiceUnreachable: nobody is there, or for too long.
            ServiceRefused: the gateway refused, or the far end is no gateway.
            CursorOwned: somebody else has the cursor.
        """
        waits = retry or Retry(self.unavailable_timeout)
        while True:
            try:
                with self.exchange(method, path, query, None if body is None else json.dumps(body).encode()) as answer:
                    octets = answer.read(DOCUMENT_MAX)
                    self.ended(answer)
                    break
            except RangeGone as error:
                raise ServiceRefused(f"{self.url}{path} answered 410: {error}") from None
            except Away as error:
                if retry is None and not error.connected and not self._was_there:
                    raise ServiceUnreachable(str(error)) from None
                waits.wait(error, error.retry_after)
        waits.progress()
        try:
            return json.loads(octets) if octets else None
        except ValueError:
            raise ServiceRefused(f"{self.url}{path} answered, but not with JSON; is it a gateway?") from None

    # ----------------------------------------------------------------------------------------------- exchanges

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """One request, and its answer if that is a success. Any failure while the answer is read is :class:`Away`, and
        the connection is not used again unless the answer was read to its end.

        Raises:
            Away: repeat it, perhaps.
            RangeGone: 410.
            GatewayError: the gateway said no.
        """
        sent = {**self._headers, **(headers or {})}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        answer = None
        whole = False
        try:
            answer = self._send(method, target, body, sent)
            self._was_there = True
            if not 200 <= answer.status < 300:
                self._refuse(path, answer)
            yield answer
            whole = answer.isclosed()
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"{self.url} broke off: {_said(error)}") from None
        finally:
            if answer is not None:
                answer.close()
            if not whole:
                self.close()

    def _send(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        used = self._connection is not None
        connection = self._connection or self._connect()
        try:
            connection.request(method, target, body, dict(headers))
            return connection.getresponse()
        except (ConnectionError, http.client.BadStatusLine):
            self.close()
            if not used:
                raise
        # The gateway ended the connection while nobody used it: that is no failure.
        connection = self._connect()
        connection.request(method, target, body, dict(headers))
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context
            )
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise ServiceRefused(f"{self.url}: its certificate does not verify: {error.verify_message}") from None
        except OSError as error:
            raise Away(f"{self.url} cannot be reached: {_said(error)}", connected=False) from None
        self._connection = connection
        return connection

    def _refuse(self, path: str, answer: http.client.HTTPResponse) -> None:
        """Raise what an answer that is no success stands for."""
        octets = answer.read(PROBLEM_MAX)
        try:
            problem = json.loads(octets)
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {}
        said = str(problem.get("detail") or problem.get("title") or answer.reason)
        code = str(problem.get("code", ""))
        text = f"{self.url}{path} answered {answer.status}: {said}{f' [{code}]' if code else ''}"
        if answer.status in RETRIED:
            raise Away(text, _seconds(answer.getheader("retry-after", "")))
        if answer.status == 410:
            raise RangeGone(said)
        raise _error(answer.status, code, said, text)

    def ended(self, answer: http.client.HTTPResponse) -> None:
        """Check that an answer came to its end.

        Raises:
            Away: it did not.
        """
        left = answer.length  # the client tells of a chunked answer that was cut off, but not of any other
        if left:
            raise Away(f"{self.url} broke off: {left} octets of the answer did not come")
        if not answer.isclosed() and answer.read(1):
            raise ServiceRefused(f"{self.url} sent more than its answer")


def _error(status: int, code: str, said: str, text: str) -> GatewayError:
    if code == "cursor_owned":
        return CursorOwned(said)
    if status in (401, 403):
        return ServiceRefused(
            f"{text}. The API key comes from the file that api_key_file names, or from GATEWAY_API_KEY"
        )
    return ServiceRefused(text if code else f"{text}; is it a gateway?")


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ca_file {ca_file}: {_said(error)}") from None


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _seconds(text: str) -> float:
    """``Retry-After``, where it is a number."""
    return float(text) if text.isdecimal() else 0.0
