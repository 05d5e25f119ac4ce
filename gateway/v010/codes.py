"""Error codes of 0-10 and the reply codes of the classic versions, which the gateway speaks throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ERROR_CODES: Final[Mapping[int, tuple[str, int]]] = {
    403: ("unauthorized-access", 403),
    404: ("not-found", 404),
    405: ("resource-locked", 405),
    406: ("precondition-failed", 406),
    408: ("resource-deleted", 404),
    409: ("illegal-state", 406),
    503: ("command-invalid", 503),
    506: ("resource-limit-exceeded", 506),
    530: ("not-allowed", 530),
    531: ("illegal-argument", 406),
    540: ("not-implemented", 540),
    541: ("internal-error", 541),
    542: ("invalid-argument", 406),
}
"""error-code of execution.exception -> its name and the reply code it becomes."""

DETACH_REPLY_CODES: Final[Mapping[int, int]] = {0: 320, 1: 405, 2: 504, 3: 504, 4: 541}
"""detach-code of session.detached -> the reply code it becomes."""

_OTHERS: Final[Mapping[int, int]] = {311: 506, 313: 404, 320: 541, 402: 404, 501: 531, 502: 531, 504: 409, 505: 409}

NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
"""The reply codes of a message that is returned."""


def reply(error_code: int, description: str | None) -> tuple[int, str]:
    """Reply code and text for an execution.exception."""
    name, code = ERROR_CODES.get(error_code, (f"error {error_code}", 541))
    return code, f"{name}: {description}" if description else name


def error_code(reply_code: int) -> int:
    """The error-code for a reply code."""
    return reply_code if reply_code in ERROR_CODES else _OTHERS.get(reply_code, 541)
