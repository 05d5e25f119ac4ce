"""The last requests to each endpoint, with what was sent and answered, for people who look for what is wrong.

They are in the memory of the process that made them, and few: :data:`EACH_MAX` of an endpoint, of at most
:data:`ENDPOINTS_MAX` endpoints, those that were called last. Bodies of requests are not kept: a
message is in the ledger.
Values of headers that are settings of the endpoint, credentials or signatures are never kept. Of an answer there is an
excerpt, as :mod:`gateway.webhooks.attempts.excerpts` makes it. It is made when somebody looks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.webhooks.attempts.excerpts import REDACTED, excerpt, secrets_of
from gateway.webhooks.attempts.forms import Header, PushedMessage
from gateway.webhooks.endpoint import Endpoint

EACH_MAX: Final = 20
"""Attempts of one endpoint."""
ENDPOINTS_MAX: Final = 250
"""Endpoints of which there are any."""
MESSAGES_MAX: Final = 10
"""Messages of one request that are named."""
HEADERS_MAX: Final = 50
"""Headers of one request."""
VALUE_MAX: Final = 200
"""Longest value of a header, in characters."""
BODY_MAX: Final = 4_096
"""Longest answer of a success of which there is an excerpt, in bytes."""
SECRET: Final = frozenset({"authorization", "webhook-signature"})
"""Headers whose values are never kept."""


@dataclass(slots=True)
class SentRequest:
    """What goes out, while it is on its way."""

    authorizations: list[bytes] = field(default_factory=list)
    """The values of ``Authorization`` that were sent."""
    headers: Sequence[Header] = ()
    octets: int = 0
    """Bytes of the body."""


@dataclass(slots=True)
class Attempt:
    """One request, and what came of it."""

    id: str
    """No other attempt has it, of any process."""
    at: float
    """When it began, in seconds since 1970."""
    endpoint: Endpoint
    """As it was then."""
    messages: tuple[str, ...]
    """The gateway's ids of the first messages in it."""
    count: int
    """How many messages were in it."""
    subscription: str
    attempt: int | None
    """The highest number of an attempt of its messages."""
    test: bool
    sent: SentRequest
    webhook_id: str = ""
    status: int | None = None
    code: str = ""
    """Code of the error; empty: there is an answer."""
    reason: str = ""
    seconds: float = 0.0
    resent: bool = False
    content_type: str | None = None
    encoding: str | None = None
    body: bytes = b""
    """Of the answer, unless ``kept`` is made of it already."""
    kept: str = ""

    @property
    def excerpt(self) -> str:
        """What may be shown of the answer's body."""
        if self.kept or not self.body:
            return self.kept
        if len(self.body) > BODY_MAX:
            return f"(not kept: {len(self.body):,} bytes of a success)"
        return excerpt(self.body, self.encoding, secrets_of(self.endpoint, self.sent.authorizations))

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names and values that were sent, without secrets."""
        own = {name.lower() for name in self.endpoint.settings.headers}
        shown = []
        for raw_name, raw_value in self.sent.headers[:HEADERS_MAX]:
            name = raw_name.decode("latin-1")
            value = raw_value.decode("utf-8", "backslashreplace")
            hidden = name.lower() in SECRET or name.lower() in own
            shown.append((name, REDACTED if hidden else value[:VALUE_MAX]))
        return shown


class RecentAttempts:
    """The last ones of each endpoint."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, deque[Attempt]] = OrderedDict()
        self._process = ids.hex(4)
        self._count = 0

    def begin(self, endpoint: Endpoint, items: Sequence[PushedMessage]) -> Attempt:
        """Return an attempt that begins now; it is not kept yet."""
        self._count += 1
        return Attempt(
            id=f"{self._process}-{self._count}",
            at=clock.now(),
            endpoint=endpoint,
            messages=tuple([item.message_id for item in items[:MESSAGES_MAX]]),
            count=len(items),
            subscription=items[0].subscription if items else "",
            attempt=max([item.attempt for item in items if item.attempt is not None], default=None),
            test=True in [item.test for item in items],
            sent=SentRequest(),
        )

    def end(self, attempt: Attempt) -> None:
        """Keep it. A URL of a replay, which is no endpoint, has no name to be found by."""
        name = attempt.endpoint.name
        if not name:
            return
        if len(attempt.body) > BODY_MAX:  # the rest is not shown, and would only take room
            attempt.kept, attempt.body = attempt.excerpt, b""
        kept = self._kept.get(name)
        if kept is None:
            if len(self._kept) >= ENDPOINTS_MAX:
                self._kept.popitem(last=False)
            kept = self._kept[name] = deque(maxlen=EACH_MAX)
        else:
            self._kept.move_to_end(name)
        kept.append(attempt)

    def of(self, endpoint: str) -> list[Attempt]:
        """Those of an endpoint, the newest first."""
        return list(reversed(self._kept.get(endpoint, ())))

    def forget(self, endpoint: str) -> None:
        """The endpoint was deleted."""
        self._kept.pop(endpoint, None)
