"""``/v1/pipeline/runs``: what jobs of the pipeline tell of themselves, so that a run that is done is not done again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output, PageQuery
from gateway.api.history.events import microseconds
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import ApiProblem, wrong_parameter
from gateway.api.http.routing import SHORT_STRING_MAX, Route, Scope
from gateway.api.resources.brokers import moment
from gateway.ledger import Run

DETAIL_MAX: Final = 65_536
"""Largest detail of a run, in octets of JSON."""
Time = Annotated[datetime, Meta(tz=True)]
"""RFC 3339, with its offset."""


class RunRequest(Input):
    """What a job tells of a run."""

    job: Annotated[str, Meta(min_length=1, max_length=SHORT_STRING_MAX)]
    """Name of the job."""
    state: Literal["running", "done", "failed"]
    """How the run stands."""
    started_at: Time
    """When it began, RFC 3339 with an offset."""
    ended_at: Time | None = None
    """When it ended, RFC 3339 with an offset; unless given, it has not."""
    fingerprint: Annotated[str, Meta(max_length=SHORT_STRING_MAX)] = ""
    """Fingerprint of the job's settings. The same id with another fingerprint is another run."""
    detail: dict[str, Any] = msgspec.field(default_factory=dict)
    """Counts, ranges and reasons, at most 64 KiB of JSON."""


class PipelineRun(Output, omit_defaults=False):
    """A run of a job."""

    id: str
    """Id of the run."""
    job: str
    """Name of the job."""
    state: str
    """``running``, ``done`` or ``failed``."""
    started_at: str
    """When it began, RFC 3339."""
    ended_at: str | None
    """When it ended, RFC 3339; ``null``: it has not."""
    fingerprint: str
    """Fingerprint of the job's settings."""
    detail: dict[str, Any]
    """Counts, ranges and reasons, as the job wrote them."""
    updated_at: str
    """When the job last told of the run, RFC 3339."""


class PipelineRuns(Output, omit_defaults=False):
    """A page of runs."""

    runs: list[PipelineRun]
    """The runs of this page."""


class RunsQuery(PageQuery):
    """Paging and filters."""

    job: Annotated[str, Meta(description="Only runs of this job.")] = ""
    state: Annotated[Literal["", "running", "done", "failed"], Meta(description="Only runs in this state.")] = ""


async def put_run(call: Call) -> Response:
    """Remember a run."""
    run_id = call.names["run"]
    request = await call.json(RunRequest)
    if not run_id.isprintable():
        raise wrong_parameter("run", "the id of the run is not printable characters")
    for field, text in (("job", request.job), ("fingerprint", request.fingerprint)):
        if not text.isprintable() or (not text and field != "fingerprint"):
            detail = "this is not printable characters"
            raise ApiProblem("invalid_parameter", f"{field}: {detail}", errors=[(f"/{field}", detail)])
    size = len(msgspec.json.encode(request.detail))
    if size > DETAIL_MAX:
        raise ApiProblem("limit_exceeded", f"detail is {size} octets of JSON; the limit is {DETAIL_MAX}")
    run = Run(
        id=run_id,
        job=request.job,
        state=request.state,
        started_at=microseconds(request.started_at),
        ended_at=0 if request.ended_at is None else microseconds(request.ended_at),
        fingerprint=request.fingerprint,
        detail=request.detail,
    )
    logs = call.gateway.ledger.log
    created = await logs.put_run(run)
    return answer(describe(await logs.get_run(run_id)), 201 if created else 200)


async def get_run(call: Call) -> Response:
    """One of them."""
    return answer(describe(await call.gateway.ledger.log.get_run(call.names["run"])))


async def list_runs(call: Call) -> Response:
    """A page of them, the newest first."""
    query = call.query(RunsQuery)
    try:
        page, cursor = await call.gateway.ledger.log.list_runs(
            query.job or None, query.state or None, query.cursor or None, query.limit
        )
    except ValueError as error:
        raise wrong_parameter("cursor", f"it was not given by a page of this list: {error}") from None
    headers = page_headers(call, cursor, limit=query.limit, job=query.job, state=query.state)
    return answer(PipelineRuns(runs=[describe(run) for run in page]), headers=headers)


def describe(run: Run) -> PipelineRun:
    """A run as JSON."""
    return PipelineRun(
        id=run.id,
        job=run.job,
        state=run.state,
        started_at=moment(run.started_at / 1e6),
        ended_at=moment(run.ended_at / 1e6) if run.ended_at else None,
        fingerprint=run.fingerprint,
        detail=run.detail,
        updated_at=moment(run.updated_at / 1e6),
    )


_PATH: Final = "/v1/pipeline/runs/{run}"

ROUTES = (
    Route(
        "GET", "/v1/pipeline/runs", "list_pipeline_runs", "List runs of jobs", list_runs, Scope.ADMIN,
        {200: ("A page, the newest first.", PipelineRuns)}, query=RunsQuery,
        codes=("invalid_parameter", "ledger_unavailable"), tag="pipeline",
    ),
    Route(
        "GET", _PATH, "get_pipeline_run", "Read a run of a job", get_run, Scope.ADMIN,
        {200: ("The run.", PipelineRun)}, codes=("run_not_found", "ledger_unavailable"), tag="pipeline",
    ),
    Route(
        "PUT", _PATH, "put_pipeline_run", "Record a run of a job", put_run, Scope.ADMIN,
        {200: ("Recorded, in place of the earlier record.", PipelineRun), 201: ("It is new.", PipelineRun)},
        body=RunRequest,
        codes=("malformed_json", "invalid_request", "invalid_parameter", "unsupported_media_type", "limit_exceeded",
               "state", "ledger_unavailable"),
        description="A run that is done is not overwritten (409 `state`). Sending the same again is no error.",
        tag="pipeline",
    ),
)  # fmt: skip
