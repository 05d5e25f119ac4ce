"""``/v1/replays``: messages once more, from the ledger or a queue, to anywhere."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output, PageQuery
from gateway.api.http.call import Call, answer, invalid_setting, page_headers
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.core.publishing.outbox import moment
from gateway.errors import EncodeError
from gateway.replays import Job, Preview, ReplayRequest, Replays


class Replay(Output, omit_defaults=False):
    """A replay and how far it came."""

    id: str
    """Id of the replay."""
    state: str
    """``pending``, ``running``, ``paused``, ``done``, ``failed`` or ``cancelled``. ``failed`` also where it found
    messages and none of them was sent."""
    reason: str
    """Why it waits or failed, or how many messages were not sent."""
    client: str
    """The name of the API key that asked for it."""
    created_at: str
    """When it was first asked for, RFC 3339."""
    asked_at: str
    """When it was asked for last, RFC 3339."""
    ended_at: str | None
    """When it ended, RFC 3339; ``null``: it has not."""
    runs: int
    """How often it was begun from the beginning."""
    total: int | None
    """How many messages there were at the beginning; ``null`` where that is not known."""
    found: int
    """How many messages it has reached."""
    sent: int
    """How many messages it has sent; with the target ``purge``: deleted."""
    skipped: int
    """Messages that an earlier run of the same id had sent."""
    refused: dict[str, int]
    """How many messages were not sent, by the code of the reason; ``no_body`` where the ledger does not keep the
    body."""
    signed: bool | None
    """Whether requests to the endpoint are signed, as it was asked for. Those to a ``url`` are not. ``null``: the
    messages go to brokers."""
    resent: int
    """How many of those sent may have been sent before a crash, too. Each is marked."""
    request: Any
    """The request that asked for it."""


class ReplayList(Output, omit_defaults=False):
    """A page of replays."""

    replays: list[Replay]
    """The replays of this page."""


class ReplayRefusal(Output, omit_defaults=False):
    """A message that was not sent. It is where it was."""

    id: str
    """Id of the message or of the delivery."""
    code: str
    """Why, as a code of the table of errors; ``no_body`` where the ledger does not keep the body."""
    detail: str
    """Why, in a sentence."""


class ReplayRefusals(Output, omit_defaults=False):
    """A page of them."""

    refused: list[ReplayRefusal]
    """The messages of this page."""


class RefusalsQuery(Input):
    """Paging."""

    cursor: Annotated[str, Meta(pattern="^[0-9]{0,6}$", description="From the link `rel=next`.")] = ""


async def ask_replay(call: Call) -> Response:
    """Begin one, or say what it would do."""
    request = await call.json(ReplayRequest)
    replays = the_replays(call)
    try:
        if request.dry_run:
            return answer(await replays.preview(request))
        job, created = await replays.ask(request, call.principal.name)
    except EncodeError as error:
        raise invalid_setting(error) from None
    return answer(describe(job), 201 if created else 200, {"location": f"/v1/replays/{job.id}"})


async def list_replays(call: Call) -> Response:
    """A page of them."""
    query = call.query(PageQuery)
    page, cursor = await the_replays(call).page(query.cursor or None, query.limit)
    return answer(
        ReplayList(replays=[describe(job) for job in page]), headers=page_headers(call, cursor, limit=query.limit)
    )


async def get_replay(call: Call) -> Response:
    """One of them."""
    return answer(describe(await the_replays(call).get(call.names["replay"])))


async def list_refusals(call: Call) -> Response:
    """What one did not send."""
    page = int(call.query(RefusalsQuery).cursor or "0")
    found, following = await the_replays(call).refusals(call.names["replay"], page)
    refused = [ReplayRefusal(id=each.id, code=each.code, detail=printable(each.detail)) for each in found]
    return answer(
        ReplayRefusals(refused=refused), headers=page_headers(call, None if following is None else str(following))
    )


async def pause_replay(call: Call) -> Response:
    """Send nothing more for now."""
    return answer(describe(await the_replays(call).pause(call.names["replay"])))


async def resume_replay(call: Call) -> Response:
    """Go on."""
    return answer(describe(await the_replays(call).resume(call.names["replay"])))


async def cancel_replay(call: Call) -> Response:
    """Send nothing more."""
    return answer(describe(await the_replays(call).cancel(call.names["replay"])))


def the_replays(call: Call) -> Replays:
    """Those of the gateway."""
    assert call.replays is not None
    return call.replays


def describe(job: Job) -> Replay:
    """A replay as JSON."""
    return Replay(
        id=job.id,
        state=job.state.value,
        reason=job.reason,
        client=job.client,
        created_at=moment(job.created_at),
        asked_at=moment(job.asked_at),
        ended_at=moment(job.ended_at) if job.ended_at else None,
        runs=job.runs,
        total=job.total,
        found=job.found,
        sent=job.sent,
        skipped=job.skipped,
        refused=job.refused,
        signed=job.signed,
        resent=job.resent,
        request=msgspec.to_builtins(job.request),
    )


_PATH: Final = "/v1/replays/{replay}"
_CODES: Final = ("replay_not_found", "ledger_unavailable")
_STATE: Final = {200: ("The replay, as it is now; the change may take a moment.", Replay)}

ROUTES = (
    Route(
        "POST", "/v1/replays", "ask_replay", "Start a replay", ask_replay, Scope.ADMIN,
        {
            200: ("With `dry_run`: what the replay would do. Otherwise the replay of this id, which existed.", Preview),
            201: ("The replay, which begins now.", Replay),
        },
        body=ReplayRequest,
        codes=("malformed_json", "invalid_request", "invalid_value", "unsupported_media_type", "broker_not_found",
               "endpoint_not_found", "not_found", "access_refused", "address_denied", "broker_unavailable", "state",
               "limit_exceeded", "ledger_unavailable", "unsupported"),
        description=(
            "One of the same id that has ended is run again, and sends only what was not sent before; asked for "
            "otherwise it is 409 `state`. What is sent has an id of its own, the same whenever it is sent again."
        ),
        tag="replays",
    ),
    Route(
        "GET", "/v1/replays", "list_replays", "List replays", list_replays, Scope.ADMIN,
        {200: ("A page, by id. A replay is deleted a month after it ended.", ReplayList)},
        query=PageQuery, codes=("invalid_parameter", "ledger_unavailable"), tag="replays",
    ),
    Route(
        "GET", _PATH, "get_replay", "Read a replay", get_replay, Scope.ADMIN,
        {200: ("The replay: state, counts, what was asked for.", Replay)}, codes=_CODES, tag="replays",
    ),
    Route(
        "GET", f"{_PATH}/refused", "list_replay_refusals", "List messages that a replay did not send", list_refusals,
        Scope.ADMIN, {200: ("A page, in the order of the replay.", ReplayRefusals)}, query=RefusalsQuery,
        codes=(*_CODES, "invalid_parameter"), tag="replays",
    ),
    Route(
        "POST", f"{_PATH}:pause", "pause_replay", "Pause a replay", pause_replay, Scope.ADMIN, _STATE,
        codes=(*_CODES, "state"), tag="replays",
    ),
    Route(
        "POST", f"{_PATH}:resume", "resume_replay", "Resume a replay", resume_replay, Scope.ADMIN, _STATE,
        codes=(*_CODES, "state"), tag="replays",
    ),
    Route(
        "POST", f"{_PATH}:cancel", "cancel_replay", "Cancel a replay", cancel_replay, Scope.ADMIN, _STATE,
        codes=(*_CODES, "state"), description="What it has sent stays sent.", tag="replays",
    ),
)  # fmt: skip
