"""Runs of the pipeline's jobs, as the jobs tell of them. A run that is done stays what it is."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.errors import StateError
from gateway.ledger.db.encoding import document, parse
from gateway.ledger.db.models import pipeline_runs
from gateway.ledger.logs.logged import Run

DONE = "done"
CHUNK = 1_000
"""Most rows that are forgotten in one transaction."""
_THIS = pipeline_runs.c.id == sa.bindparam("this", type_=sa.Text)
_GET = sa.select(pipeline_runs).where(_THIS)


def put(connection: sa.Connection, run: Run, now: int) -> bool:
    """Remember a run, in place of its earlier record. True: nothing was. ``now`` in microseconds.

    Raises:
        StateError: the run of that id is done, and this is not the same; or it is one of another job.
    """
    row = connection.execute(_GET.with_for_update(), {"this": run.id}).one_or_none()
    values = {
        "job": run.job,
        "state": run.state,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "fingerprint": run.fingerprint,
        "detail": document(run.detail),
    }
    if row is None:
        connection.execute(sa.insert(pipeline_runs).values(id=run.id, updated_at=now, **values))
        return True
    there = row._asdict()
    if all(there[name] == value for name, value in values.items()):
        return False
    for name, what in (("job", "job"), ("fingerprint", "fingerprint")):
        if there[name] != values[name]:
            raise StateError(
                f"the run {run.id!r} has the {what} {there[name]!r}, not {values[name]!r}: it is another one; "
                "choose another id"
            )
    if row.state == DONE:
        raise StateError(f"the run {run.id!r} is done, and is not overwritten")
    connection.execute(sa.update(pipeline_runs).where(_THIS), {"this": run.id, **values, "updated_at": now})
    return False


def get(connection: sa.Connection, run_id: str) -> Run | None:
    """One by its id."""
    row = connection.execute(_GET, {"this": run_id}).one_or_none()
    return None if row is None else _run(row)


def page(
    connection: sa.Connection, job: str | None, state: str | None, cursor: str | None, limit: int
) -> tuple[list[Run], str | None]:
    """Some, the newest first, and the cursor of the next page (None: that was the last).

    Raises:
        ValueError: the cursor is malformed.
    """
    there = pipeline_runs.c
    query = sa.select(pipeline_runs).order_by(there.started_at.desc(), there.id.desc()).limit(limit + 1)
    for column, value in ((there.job, job), (there.state, state)):
        if value is not None:
            query = query.where(column == value)
    if cursor is not None:
        started_at, _, run_id = cursor.partition("~")
        if not (started_at.isascii() and started_at.isdigit() and len(started_at) < 19):
            raise ValueError(f"{cursor!r:.80} is no cursor of this list")
        query = query.where(sa.tuple_(there.started_at, there.id) < sa.tuple_(int(started_at), run_id))
    rows = connection.execute(query).all()
    found = [_run(row) for row in rows[:limit]]
    return found, f"{found[-1].started_at}~{found[-1].id}" if len(rows) > limit else None


def forget(connection: sa.Connection, before: int) -> int:
    """Delete runs that nothing was heard of since ``before``, in microseconds; at most :data:`CHUNK`; how many."""
    old = sa.select(pipeline_runs.c.id).where(pipeline_runs.c.started_at < before, pipeline_runs.c.updated_at < before)
    query = sa.delete(pipeline_runs).where(pipeline_runs.c.id.in_(old.limit(CHUNK)))
    return connection.execute(query).rowcount


def _run(row: sa.Row[tuple[object, ...]]) -> Run:
    return Run(
        id=row.id,
        job=row.job,
        state=row.state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        fingerprint=row.fingerprint,
        detail=parse(row.detail),
        updated_at=row.updated_at,
    )
