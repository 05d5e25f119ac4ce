"""Where a broker sends us (connection.redirect of 0-8 and 0-10), and whether we go there.

Our credentials go with us, so only to hosts that the broker's settings name (``redirect_hosts``). What a broker writes
is ``host``, ``host:port`` or ``[address]:port``; in 0-10 with ``amqp:`` and the transport before it and several of
them between commas. The gateway chooses the transport: where the URL says ``amqps``, so is what is behind a redirect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.config import BrokerUrl, parse_host
from gateway.errors import BrokerUnavailable, ConfigurationError

REDIRECTS_MAX: Final = 5
"""Most places that one attempt to connect is sent to, one after the other."""
PLACES_MAX: Final = 16
"""Most places of one redirect that are looked at."""

_PREFIXES: Final = ("amqp:", "tcp:", "tls:")


class RedirectRefused(BrokerUnavailable):
    """The broker sends its clients to a host that the settings do not name, or in circles: waiting will not help."""


def allowed_places(url: BrokerUrl, hosts: Iterable[str], allowed: Iterable[str]) -> list[BrokerUrl]:
    """Where to go from ``url``, best first: those of ``hosts``, as a broker wrote them, that the settings allow.

    Raises:
        RedirectRefused: none of them is.
    """
    named = [parse_host(entry) for entry in allowed]
    said = [part.strip() for host in hosts for part in host.split(",")][:PLACES_MAX]
    places: list[BrokerUrl] = []
    for text in said:
        place = _place(text, url.port)
        if place is None or not any(host == place[0] and port in (None, place[1]) for host, port in named):
            continue
        found = msgspec.structs.replace(url, host=place[0], port=place[1])
        if found not in places:
            places.append(found)
    if not places:
        raise RedirectRefused(
            f"the broker sends its clients to {', '.join(said)!r:.200}, and redirect_hosts names none of that"
        )
    return places


def _place(text: str, default: int) -> tuple[str, int] | None:
    """Host and port of what a broker wrote, None where that is neither."""
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    try:
        host, port = parse_host(text)
    except ConfigurationError:
        return None
    return host, default if port is None else port
