"""``/console``: files of the package, under a policy that allows this origin alone."""

from __future__ import annotations

import gzip

import httpx
import pytest

from gateway.api.about.console import files
from tests.api.conftest import problem


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/console.js", "/console/uPlot.min.css"])
async def test_a_file_with_its_policy(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-cache")


async def test_a_file_that_the_caller_has(client: httpx.AsyncClient) -> None:
    etag = (await client.get("/console")).headers["etag"]
    answer = await client.get("/console", headers={"if-none-match": etag})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(("accepts", "coding"), [("gzip, br", "gzip"), ("identity", None)])
async def test_a_file_compressed_or_not(client: httpx.AsyncClient, accepts: str, coding: str | None) -> None:
    answer = await client.get("/console/console.js", headers={"accept-encoding": accepts})
    assert answer.headers.get("content-encoding") == coding
    assert answer.content == files()["console.js"].content == gzip.decompress(files()["console.js"].compressed)


@pytest.mark.parametrize("name", ["vendored.toml", "LICENSE.htm", "vendor", "none.js", "..%2Fapp.py"])
async def test_a_file_that_is_not_there(client: httpx.AsyncClient, name: str) -> None:
    problem(await client.get(f"/console/{name}"), 404, "route_not_found")
