"""``/v1/pipeline/runs``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import problem

RUN = {"job": "rollup", "state": "running", "started_at": "2027-01-15T08:00:00.5Z", "fingerprint": "f"}
PATH = "/v1/pipeline/runs/r-1"


async def test_a_run_from_beginning_to_end(client: httpx.AsyncClient) -> None:
    first = await client.put(PATH, json=RUN)
    assert first.status_code == 201
    found = first.json()
    assert found | {"updated_at": ""} == {
        "id": "r-1", "job": "rollup", "state": "running", "started_at": "2027-01-15T08:00:00.500000Z",
        "ended_at": None, "fingerprint": "f", "detail": {}, "updated_at": "",
    }  # fmt: skip
    done = RUN | {"state": "done", "ended_at": "2027-01-15T09:00:00+01:00", "detail": {"rows": 5}}
    for _ in range(2):
        assert (await client.put(PATH, json=done)).status_code == 200
    assert (await client.get(PATH)).json()["ended_at"] == "2027-01-15T08:00:00.000000Z"
    over = problem(await client.put(PATH, json=RUN), 409, "state")
    assert "'r-1' is done, and is not overwritten" in over["detail"]
    problem(await client.put(PATH, json=done | {"job": "archive"}), 409, "state")
    problem(await client.get("/v1/pipeline/runs/r-2"), 404, "run_not_found")


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"state": "over"}, 422, "invalid_request"),
        ({"started_at": "yesterday"}, 422, "invalid_request"),
        ({"started_at": "2027-01-15T08:00:00"}, 422, "invalid_request"),
        ({"job": ""}, 422, "invalid_request"),
        ({"job": "a\nb"}, 422, "invalid_parameter"),
        ({"fingerprint": "\u0000"}, 422, "invalid_parameter"),
        ({"detail": {"x": "y" * 70_000}}, 413, "limit_exceeded"),
        ({"colour": "red"}, 422, "invalid_request"),
    ],
)
async def test_what_is_no_run(client: httpx.AsyncClient, given: dict[str, Any], status: int, code: str) -> None:
    problem(await client.put(PATH, json=RUN | given), status, code)
    problem(await client.get(PATH), 404, "run_not_found")


async def test_pages_and_filters(client: httpx.AsyncClient) -> None:
    for number in range(3):
        state = "failed" if number == 1 else "done"
        await client.put(
            f"/v1/pipeline/runs/r-{number}", json=RUN | {"state": state, "started_at": f"2027-01-1{number}T00:00:00Z"}
        )
    page = await client.get("/v1/pipeline/runs?limit=2")
    rest = await client.get(page.links["next"]["url"])
    assert [run["id"] for run in page.json()["runs"] + rest.json()["runs"]] == ["r-2", "r-1", "r-0"]
    failed = await client.get("/v1/pipeline/runs?state=failed&job=rollup")
    assert [run["id"] for run in failed.json()["runs"]] == ["r-1"]
    problem(await client.get("/v1/pipeline/runs?cursor=x"), 422, "invalid_parameter")
