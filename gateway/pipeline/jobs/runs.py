"""A run: one job, once, with a record in the ledger.

The record says what ran, since when, how far it is and how it ended. It is what makes a second run harmless: an id that
is done is not done again but answered from its record, and one that belongs to other settings is refused. A run that
ended in the middle, or was killed, is run again with the same id; the jobs go on where they were.

A record is written before the work begins, so a missing gateway is reported at once, and not after an hour.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import FingerprintDiffers, GatewayError, NoSuchResource, PipelineFault
from gateway.exits import DONE, exit_status
from gateway.pipeline.faults import fault_of
from gateway.pipeline.jobs.base import Context, Job, Outcome
from gateway.pipeline.service import Service
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.ids import ids

RUNS: Final = "/v1/pipeline/runs"
DETAIL_MAX: Final = 60_000
"""Largest detail that is sent with a record, in octets of JSON; the service takes 64 KiB."""
LISTED: Final = "100"
"""Most runs that are listed."""
HEARD_EVERY: Final = 10.0
"""How often a run's progress is written to its record, in seconds."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    run_id: str
    outcome: Outcome
    repeated: bool = False
    """Whether nothing was done, for it had been done before: the outcome is the one of the record."""
    seconds: float = 0.0


def new_id(job: str, now: float | None = None) -> str:
    """An id for a run that was given none: ``rollup-20261103T040506-1f0a9c``."""
    at = datetime.fromtimestamp(clock.now() if now is None else now, UTC)
    return f"{job}-{at:%Y%m%dT%H%M%S}-{ids.hex(3)}"


def path_of(run_id: str) -> str:
    """Where the API has a run."""
    return f"{RUNS}/{quote(run_id, safe='')}"


def run(job: Job, context: Context, clock: Callable[[], float] = wall_time) -> Ended:
    """Run a job to its end, and record that. A dry run leaves no record.

    Raises:
        FingerprintDiffers: the id belongs to a run with other settings.
        GatewayError: the job could not be done, or its record not written.
    """
    began = clock()
    if context.dry_run:
        outcome = _faulting(job, context)
        return Ended(context.run_id, outcome, seconds=clock() - began)
    record = _Record(job, context, clock)
    before = record.read()
    if before is not None:
        return Ended(context.run_id, before, repeated=True)
    record.write("running", {})
    context.on_progress(record.heard)
    context.on_keep(record.keep)
    try:
        outcome = _faulting(job, context)
    except GatewayError as error:
        record.failed(error)
        raise
    except (KeyboardInterrupt, SystemExit):
        record.failed(PipelineFault("it was stopped; run it again with its id, and it goes on"))
        raise
    context.kept.clear()  # nobody goes on with it any more
    record.write("done", {"rows": outcome.rows, "exit": outcome.exit, **outcome.detail})
    return Ended(context.run_id, outcome, seconds=clock() - began)


def as_dict(job: Job, ended: Ended) -> dict[str, Any]:
    """How a run ended, as JSON holds it; each report says by ``kind`` what it is."""
    return {
        "id": ended.run_id,
        "job": job.name,
        "repeated": ended.repeated,
        "seconds": round(ended.seconds, 3),
        "rows": ended.outcome.rows,
        "exit": ended.outcome.exit,
        "detail": dict(ended.outcome.detail),
        "reports": [
            {"kind": type(section).__name__.lower(), **dataclasses.asdict(section)} for section in ended.outcome.reports
        ],
    }


def runs(service: Service) -> list[dict[str, Any]]:
    """The records of the newest runs, as the service lists them."""
    found: list[dict[str, Any]] = service.ask("GET", RUNS, query={"limit": LISTED})["runs"]
    return found


def _faulting(job: Job, context: Context) -> Outcome:
    """Run it; it raises only errors of the gateway."""
    try:
        return job.run(context)
    except GatewayError:
        raise
    except Exception as error:
        raise fault_of(error) from error


class _Record:
    """A run's record in the ledger."""

    def __init__(self, job: Job, context: Context, clock: Callable[[], float]) -> None:
        self._service = context.service
        self._kept = context.kept
        self._progress: Mapping[str, Any] = {}
        self._run_id = context.run_id
        self._job = job.name
        self._clock = clock
        self._began = clock()
        self._written = self._began
        identity = {option.name for option in job.options if option.identity}
        self._fingerprint = context.pipeline.fingerprint(
            job.name, {name: value for name, value in context.options.items() if name in identity}
        )

    def read(self) -> Outcome | None:
        """The outcome, where this run is done; None where it may be run.

        Raises:
            FingerprintDiffers: the id belongs to a run with other settings.
        """
        try:
            found: Mapping[str, Any] = self._service.ask("GET", path_of(self._run_id))
        except NoSuchResource:
            return None
        if found["fingerprint"] != self._fingerprint:
            raise FingerprintDiffers(
                f"the run {self._run_id} of {found['started_at']} was a {found['job']} with other options, of another "
                "gateway or in another place; take another --id, or its options"
            )
        if found["state"] != "done":
            self._kept.update(found["detail"].get("kept", {}))
            return None
        detail = dict(found["detail"])
        return Outcome(rows=detail.pop("rows", 0), exit=detail.pop("exit", DONE), detail=detail)

    def write(self, state: str, detail: Mapping[str, Any]) -> None:
        """Write how it stands."""
        now = self._clock()
        body: dict[str, Any] = {
            "job": self._job,
            "state": state,
            "started_at": _moment(self._began),
            "fingerprint": self._fingerprint,
            "detail": {**_fitting(detail), **({"kept": self._kept} if self._kept else {})},
        }
        if state != "running":
            body["ended_at"] = _moment(now)
        self._service.ask("PUT", path_of(self._run_id), body=body)
        self._written = now

    def heard(self, found: Mapping[str, Any]) -> None:
        """Progress: written now and then. A gateway that cannot take it does not stop the work."""
        self._progress = {name: value for name, value in found.items() if name not in ("job", "id")}
        if self._clock() - self._written < HEARD_EVERY:
            return
        self._written = self._clock()
        try:
            self.write("running", self._progress)
        except GatewayError:
            pass  # the end of the run is what must be recorded, and it waits for the gateway

    def keep(self) -> None:
        """What is kept, at once."""
        self.write("running", self._progress)

    def failed(self, error: GatewayError) -> None:
        """Write that it failed; the failure is reported whether or not that works."""
        detail = {"code": error.code, "error": str(error)[:2_000], "exit": exit_status(type(error))}
        try:
            self.write("failed", detail)
        except GatewayError as other:
            error.add_note(f"its record could not be written: {other}")


def _fitting(detail: Mapping[str, Any]) -> dict[str, Any]:
    """What the record can hold of it: all, or the numbers of the run without the rest."""
    size = len(json.dumps(detail, default=str))
    if size <= DETAIL_MAX:
        return dict(detail)
    short = {name: value for name, value in detail.items() if isinstance(value, (int, float))}
    return {**short, "left_out": f"{size:,} octets; a record holds {DETAIL_MAX:,}"}


def _moment(at: float) -> str:
    """RFC 3339, UTC, microseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
