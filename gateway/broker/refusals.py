"""Reply codes and the texts that go with them, worded as RabbitMQ words them.

Clients take these texts apart, so each begins with the name of its code. The broker raises
:class:`~gateway.errors.RemoteError` inside itself; :mod:`gateway.broker.broker` turns it into a ``Failed``.
"""

from __future__ import annotations

from gateway.errors import RemoteError, remote_error

REPLY_NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    409: "ILLEGAL_STATE",
    503: "COMMAND_INVALID",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
"""0-9-1 section 1.2 (constants), as they begin a reply text; 409 is 0-10's."""

TEXT_MAX = 255
"""A reply text is a short string, in octets."""


def reply_text(code: int, detail: str) -> str:
    """``detail`` behind the name of its code, cut to what a short string holds (names may be that long)."""
    text = f"{REPLY_NAMES[code]} - {detail}"
    octets = text.encode("utf-8", "surrogateescape")
    if len(octets) <= TEXT_MAX:
        return text
    return octets[: TEXT_MAX - 3].decode("utf-8", "ignore") + "..."


def refusal(code: int, detail: str) -> RemoteError:
    """The error to raise for a request that is refused with ``code``."""
    return remote_error(code, reply_text(code, detail))


def missing(what: str) -> RemoteError:
    """404; ``what`` is a queue or exchange as :func:`title` writes it."""
    return refusal(404, f"no {what}")


def title(kind: str, name: str, virtual_host: str) -> str:
    """``queue 'orders' in vhost '/'``."""
    return f"{kind} '{name}' in vhost '{virtual_host}'"


def locked(what: str) -> RemoteError:
    """405, for a queue that belongs to another connection."""
    return refusal(
        405,
        f"cannot obtain exclusive access to locked {what}. It could be originally declared on another connection "
        "or the exclusive property value does not match that of the original declaration.",
    )


def inequivalent(argument: str, what: str, received: object, current: object) -> RemoteError:
    """406, for a declaration that differs from the first one."""
    return refusal(
        406, f"inequivalent arg '{argument}' for {what}: received {_shown(received)} but current is {_shown(current)}"
    )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"
