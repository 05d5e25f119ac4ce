"""Jobs one after the other in one driver, for a test that submits it to a cluster.

``submitted.py URL STORAGE JOB OPTIONS [JOB OPTIONS ...]``, the options as JSON; one line of JSON a job, with its rows
and its detail.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.pipeline.jobs.base import Context, JobRequest, job_of, options_of
from gateway.pipeline.jobs.runs import new_id, run
from gateway.pipeline.session import close_session, spark_session
from gateway.pipeline.settings import load


def outcomes(
    spark: Any, url: str, storage: str, jobs: Sequence[tuple[str, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """What each job did."""
    for name, given in jobs:
        job = job_of(name)
        pipeline = load(None, {"url": url, "storage": storage, "archive": "delta"}, {})
        context = Context(pipeline, JobRequest(new_id(name), options_of(job, given), name), spark=spark)
        try:
            ended = run(job, context)
        finally:
            context.close()
        yield {
            "job": name,
            "rows": ended.outcome.rows,
            "exit": ended.outcome.exit,
            "detail": dict(ended.outcome.detail),
        }


def main() -> None:
    """The command line."""
    url, storage, *rest = sys.argv[1:]
    jobs = [(name, json.loads(given)) for name, given in zip(rest[::2], rest[1::2], strict=True)]
    spark = spark_session(load(None, {"url": url, "storage": storage}, {}), delta=True)
    for outcome in outcomes(spark, url, storage, jobs):
        print(json.dumps(outcome, default=str), flush=True)
    close_session(spark)


if __name__ == "__main__":
    main()
