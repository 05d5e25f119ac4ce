"""The part of the service that keeps records of runs, in memory: what jobs and their commands are tested against."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httpx

from gateway.pipeline.service import Service
from gateway.pipeline.settings import Pipeline

URL = "http://gateway.test"


class Board:
    """Records of runs, and what else is asked, by path."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.others: dict[str, Any] = {}
        """Path -> what is answered."""
        self.before: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
        """May answer in its place, or raise."""

    def service(self, pipeline: Pipeline | None = None, **options: Any) -> Service:
        """A service that asks here."""
        return Service(pipeline or Pipeline(url=URL), transport=httpx.MockTransport(self._answer), **options)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        self.asked.append((request.method, path))
        if (answer := self.before(request)) is not None:
            return answer
        if path in self.others:
            return httpx.Response(200, json=self.others[path], headers={"date": "Sun, 22 Nov 2026 00:00:00 GMT"})
        if path == "/v1/pipeline/runs":
            return httpx.Response(200, json={"runs": list(self.runs.values())})
        run_id = unquote(path.removeprefix("/v1/pipeline/runs/"))
        if request.method == "PUT":
            if self.runs.get(run_id, {}).get("state") == "done":
                return problem(409, "run_done", "a run that is done is never overwritten")
            self.runs[run_id] = {"id": run_id, **json.loads(request.content)}
        if run_id not in self.runs:
            return problem(404, "run_not_found", f"there is no run {run_id!r}")
        return httpx.Response(200, json=self.runs[run_id])


def problem(status: int, code: str, detail: str) -> httpx.Response:
    """A problem as the service tells it."""
    return httpx.Response(status, json={"code": code, "detail": detail, "title": code, "status": status})
