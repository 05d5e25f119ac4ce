"""The tasks of a Celery application with Celery's defaults."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend="rpc://")


@app.task
def add(first: int, second: int) -> int:
    return first + second
