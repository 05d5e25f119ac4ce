"""``/v1/taps``: settings, state, and what is wished for."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.api.about.schemas import PageQuery, Tap, TapBody, Taps
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.api.resources.patching import MEDIA, PATCHING, Patch
from gateway.api.resources.supervised import Handlers
from gateway.notation.values import text_to_json
from gateway.taps import TapStatus
from gateway.taps.rows import TAP_KIND


def _describe(found: TapStatus) -> Tap:
    fields = {name: getattr(found, name) for name in Tap.__struct_fields__}
    fields |= {
        "state": found.state.value,
        "reason": printable(found.reason),
        "since": moment(found.since),
        "queue": text_to_json(found.queue),
        "rate": round(found.rate, 1),
        "last_error": printable(found.last_error),
    }
    return msgspec.convert(fields, Tap, from_attributes=True)


HANDLERS: Final = Handlers(TAP_KIND, lambda call: call.taps, TapBody, Tap, _describe, lambda found: Taps(taps=found))
_PATH: Final = "/v1/taps/{tap}"
_CODES: Final = ("no_such_tap", "ledger_unavailable")
_OWNER: Final = ("peer_unavailable",)
_BODY: Final = ("malformed_json", "invalid_request", "unsupported_media_type")
_QUEUE: Final = ("not_found", "access_refused", "precondition_failed", "broker_unavailable", "broker_error")
_STATE: Final = {200: ("The tap, as it is now; the change may take a moment.", Tap)}

ROUTES = (
    Route(
        "GET", "/v1/taps", "list_taps", "List taps", HANDLERS.list, Scope.ADMIN,
        {200: ("A page, by name.", Taps)}, query=PageQuery, codes=("invalid_parameter", "ledger_unavailable"),
        tag="taps",
    ),
    Route(
        "GET", _PATH, "get_tap", "Read a tap", HANDLERS.get, Scope.ADMIN,
        {200: ("The tap: settings, state, counts; its ETag is in the header.", Tap)}, codes=_CODES, tag="taps",
    ),
    Route(
        "PUT", _PATH, "put_tap", "Create or replace a tap", HANDLERS.put, Scope.ADMIN,
        {200: ("Replaced, or unchanged.", Tap), 201: ("Created; it starts now.", Tap)},
        body=TapBody, headers=("If-Match",),
        codes=(*_BODY, *_QUEUE, "invalid_value", "broker_not_found", "read_only", "precondition_required",
               "etag_mismatch", "invalid_parameter", "ledger_unavailable", *_OWNER),
        description=(
            "Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not. A tap "
            "that runs spools what has come and starts over; nothing is lost. A queue of its own is there and bound "
            "when this is answered."
        ),
        tag="taps",
    ),
    Route(
        "PATCH", _PATH, "patch_tap", "Change some settings of a tap", HANDLERS.patch,
        Scope.ADMIN, {200: ("Changed.", Tap)}, body=Patch, media=MEDIA, headers=("If-Match",),
        codes=(*_CODES, *_BODY, *_QUEUE, "invalid_value", "broker_not_found", "read_only", "precondition_required",
               "etag_mismatch", "invalid_parameter", "ledger_unavailable", *_OWNER), description=PATCHING, tag="taps",
    ),
    Route(
        "DELETE", _PATH, "delete_tap", "Delete a tap", HANDLERS.delete, Scope.ADMIN,
        {204: ("Deleted. What it has spooled stays in the log, the rest in the queue.", None)}, headers=("If-Match",),
        codes=(*_CODES, *_OWNER, "read_only", "etag_mismatch", "invalid_parameter"), tag="taps",
    ),
    Route(
        "POST", f"{_PATH}:pause", "pause_tap", "Pause a tap", HANDLERS.pause, Scope.ADMIN, _STATE,
        codes=(*_CODES, *_OWNER),
        description="It takes nothing more from its queue until it is resumed, also after a restart of the gateway.",
        tag="taps",
    ),
    Route(
        "POST", f"{_PATH}:resume", "resume_tap", "Resume a tap", HANDLERS.resume, Scope.ADMIN, _STATE,
        codes=(*_CODES, *_OWNER),
        description="After a pause, or after its end: then it takes once more what the queue holds.",
        tag="taps",
    ),
)  # fmt: skip
