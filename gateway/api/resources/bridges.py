"""``/v1/bridges``: settings, state, what is wished for, and both sides compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from starlette.responses import Response

from gateway.api.about.schemas import Bridge, BridgeBody, Bridges, CompareRequest, PageQuery
from gateway.api.http.call import Call, answer, invalid_setting
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.api.resources.patching import MEDIA, PATCHING, Patch
from gateway.api.resources.peers import at_the_owner
from gateway.api.resources.supervised import Handlers
from gateway.bridges import BridgeStatus
from gateway.bridges.compare import Report
from gateway.bridges.supervisor import BRIDGE_KIND
from gateway.errors import EncodeError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@at_the_owner(BRIDGE_KIND)
async def drain_bridge(call: Call) -> Response:
    """Forward what is there, then stop."""
    return HANDLERS.answer(await call.bridges.drain(call.names["bridge"]))


# ------------------------------------------------------------------------------------------------ comparing


@at_the_owner(BRIDGE_KIND)
async def compare_bridge(call: Call) -> Response:
    """Both sides beside each other."""
    request = await call.json(CompareRequest)
    try:
        report = await call.bridges.compare(
            call.names["bridge"],
            since=_microseconds(request.since),
            until=_microseconds(request.until),
            peek=request.peek,
            limit=request.limit,
            source_queue=request.source_queue,
            target_queue=request.target_queue,
        )
    except EncodeError as error:
        raise invalid_setting(error) from None
    return answer(report)


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _describe(found: BridgeStatus) -> Bridge:
    fields = {name: getattr(found, name) for name in Bridge.__struct_fields__}
    fields |= {
        "state": found.state.value,
        "reason": printable(found.reason),
        "since": moment(found.since),
        "rate": round(found.rate, 1),
        "lag": None if found.lag is None else round(found.lag, 6),
        "last_error": printable(found.last_error),
    }
    return msgspec.convert(fields, Bridge, from_attributes=True)


HANDLERS: Final = Handlers(
    BRIDGE_KIND, lambda call: call.bridges, BridgeBody, Bridge, _describe, lambda found: Bridges(bridges=found)
)
_PATH: Final = "/v1/bridges/{bridge}"
_CODES: Final = ("no_such_bridge", "ledger_unavailable")
_OWNER: Final = ("peer_unavailable",)
_BODY: Final = ("malformed_json", "invalid_request", "unsupported_media_type")
_STATE: Final = {200: ("The bridge, as it is now; the change may take a moment.", Bridge)}

ROUTES = (
    Route(
        "GET", "/v1/bridges", "list_bridges", "List bridges", HANDLERS.list, Scope.ADMIN,
        {200: ("A page, by name.", Bridges)}, query=PageQuery, codes=("invalid_parameter", "ledger_unavailable"),
        tag="bridges",
    ),
    Route(
        "GET", _PATH, "get_bridge", "Read a bridge", HANDLERS.get, Scope.ADMIN,
        {200: ("The bridge: settings, state, counts, lag; its ETag is in the header.", Bridge)}, codes=_CODES,
        tag="bridges",
    ),
    Route(
        "PUT", _PATH, "put_bridge", "Create or replace a bridge", HANDLERS.put, Scope.ADMIN,
        {200: ("Replaced, or unchanged.", Bridge), 201: ("Created; it starts now.", Bridge)},
        body=BridgeBody, headers=("If-Match",),
        codes=(*_BODY, "invalid_value", "broker_not_found", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "ledger_unavailable", *_OWNER),
        description=(
            "Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not. A bridge "
            "that runs settles its messages in flight and starts over; nothing is lost."
        ),
        tag="bridges",
    ),
    Route(
        "PATCH", _PATH, "patch_bridge", "Change some settings of a bridge", HANDLERS.patch,
        Scope.ADMIN, {200: ("Changed.", Bridge)}, body=Patch, media=MEDIA, headers=("If-Match",),
        codes=(*_CODES, *_BODY,
               "invalid_value", "broker_not_found", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "ledger_unavailable", *_OWNER), description=PATCHING, tag="bridges",
    ),
    Route(
        "DELETE", _PATH, "delete_bridge", "Delete a bridge", HANDLERS.delete, Scope.ADMIN,
        {204: ("Deleted. Messages that it had not forwarded are at the source.", None)}, headers=("If-Match",),
        codes=(*_CODES, *_OWNER, "read_only", "etag_mismatch", "invalid_parameter"), tag="bridges",
    ),
    Route(
        "POST", f"{_PATH}:pause", "pause_bridge", "Pause a bridge", HANDLERS.pause, Scope.ADMIN, _STATE,
        codes=(*_CODES, *_OWNER),
        description="It takes nothing more from its source until it is resumed, also after a restart of the gateway.",
        tag="bridges",
    ),
    Route(
        "POST", f"{_PATH}:resume", "resume_bridge", "Resume a bridge", HANDLERS.resume, Scope.ADMIN, _STATE,
        codes=(*_CODES, *_OWNER), description="After a pause, a drain or its end.", tag="bridges",
    ),
    Route(
        "POST", f"{_PATH}:drain", "drain_bridge", "Drain a bridge", drain_bridge, Scope.ADMIN, _STATE,
        codes=(*_CODES, *_OWNER), description="It forwards until its source is empty, and stops.",
        tag="bridges",
    ),
    Route(
        "POST", f"{_PATH}:compare", "compare_bridge", "Compare both sides of a bridge", compare_bridge, Scope.ADMIN,
        {200: ("Counts and digests of both sides, and what differs.", Report)},
        body=CompareRequest, body_required=False,
        codes=(*_CODES, *_OWNER, *_BODY, "invalid_value", "not_found", "access_refused", "resource_locked",
               "broker_unavailable", "broker_not_found"),
        description=(
            "From the ledger: what the bridge took and what it forwarded. With `peek` from the queues: a broker that "
            "can show messages shows them; from another one they are taken and given back, which marks them as "
            "redelivered."
        ),
        tag="bridges",
    ),
)  # fmt: skip
