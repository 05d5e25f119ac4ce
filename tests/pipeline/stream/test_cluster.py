"""The same jobs on a cluster of two workers, through ``spark-submit``, give the same tables as here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from gateway.commands.demo import gateway_of_our_own
from gateway.pipeline.archive.opening import open_table
from gateway.pipeline.jobs.rollups import Rollups
from gateway.pipeline.session import delta_jars
from gateway.pipeline.settings import Pipeline
from gateway.versions import VERSION_NAMES
from tests.pipeline.standalone import HOME, Cluster, cluster, environ
from tests.pipeline.stream.submitted import outcomes

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = VERSION_NAMES
EACH = 200
"""Messages that are published in each version."""
SETTLED = 60.0
JOBS: list[tuple[str, dict[str, Any]]] = [("archive", {}), ("reconcile", {"grace": 0.0})]
"""What is compared besides the rollup."""


@dataclass(frozen=True)
class Place:
    """A gateway with something in its logs, and a cluster."""

    url: str
    cluster: Cluster
    folder: Path

    def submit(self, script: Path, *arguments: str, jars: Iterable[Path] = ()) -> subprocess.CompletedProcess[str]:
        """What ``spark-submit`` said, which must have succeeded. The driver has the package, and not these sources."""
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.cluster.master]
        for name, value in self.cluster.conf.items():
            command += ["--conf", f"{name}={value}"]
        if named := ",".join(str(jar) for jar in jars):
            command += ["--jars", named]
        command += ["--py-files", str(self.folder / "gateway.zip"), str(script), *arguments]
        done = subprocess.run(
            command, env={**environ(self.folder), "PYSPARK_PYTHON": sys.executable}, cwd=self.folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run(
        [sys.executable, str(ROOT / "deploy/spark/package.py"), str(folder / "gateway.zip")],
        check=True,
        capture_output=True,
    )
    with ExitStack() as stack:
        url = stack.enter_context(gateway_of_our_own())
        publish(url)
        yield Place(url, stack.enter_context(cluster(folder / "spark")), folder)


def publish(url: str) -> None:
    """Messages in every version, all of them spooled by a tap."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as api:
        api.put("/v1/brokers/local-0-8/queues/orders", json={"durable": True}).raise_for_status()
        # Both archive the same rows: a reader that stays at the beginning keeps them in the log.
        claim = {"log": "messages", "owner": "test", "start": "earliest"}
        api.post("/v1/log/cursors/hold:claim", json=claim).raise_for_status()
        api.put("/v1/taps/orders", json={"broker": "local-0-10", "queue": "orders"}).raise_for_status()
        for version in VERSIONS:
            lines = (json.dumps({"routing_key": "orders", "payload": f"{version} {at}"}) for at in range(EACH))
            answer = api.post(
                f"/v1/brokers/local-{version}/exchanges/amq.default:publish",
                content="".join(f"{line}\n" for line in lines),
                headers={"content-type": "application/x-ndjson"},
            )
            answer.raise_for_status()
        deadline = time.monotonic() + SETTLED
        while heads(api, "messages") < len(VERSIONS) * EACH:
            assert time.monotonic() < deadline, heads(api, "messages")
            time.sleep(0.1)
        before = -1
        while (now := heads(api, "events")) != before:  # the last events are written behind the last answers
            before = now
            time.sleep(0.5)


def heads(api: httpx.Client, log: str) -> int:
    """How many rows a log has."""
    return sum(shard["head"] for shard in api.get("/v1/log/head", params={"log": log}).json()["shards"])


def last_line(said: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def rollup(spark: SparkSession, storage: Path) -> DataFrame:
    """A rollup without its sketches, whose octets depend on the order in which rows came."""
    return Rollups(storage / "rollups").read(spark).drop("latency", "run")


@pytest.mark.slow
def test_the_command_through_spark_submit(place: Place, spark: SparkSession) -> None:
    there, here = place.folder / "there", place.folder / "here"
    script = ROOT / "gateway/pipeline/__main__.py"
    done = place.submit(script, "run", "rollup", "--url", place.url, "--storage", str(there), "--id", "r1", "--json")
    found = last_line(done.stdout)
    (wanted,) = outcomes(spark, place.url, str(here), [("rollup", {})])
    assert (found["rows"], found["exit"]) == (wanted["rows"], wanted["exit"])
    assertDataFrameEqual(rollup(spark, there), rollup(spark, here))
    with httpx.Client(base_url=place.url, trust_env=False) as api:
        record = api.get("/v1/pipeline/runs/r1").json()
        assert found["rows"] == heads(api, "events") >= 2 * len(VERSIONS) * EACH
    assert (record["state"], record["detail"]["rows"]) == ("done", found["rows"])
    assert place.cluster.executors(), "it ran on the workers"


@pytest.mark.slow
def test_the_same_jobs_give_the_same_tables(place: Place, spark: SparkSession) -> None:
    there, here = place.folder / "there", place.folder / "here"
    arguments = [text for name, given in JOBS for text in (name, json.dumps(given))]
    done = place.submit(
        Path(__file__).with_name("submitted.py"), place.url, str(there), *arguments, jars=delta_jars(Pipeline())
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wanted = list(outcomes(spark, place.url, str(here), JOBS))
    assert [(each["job"], each["rows"], each["exit"]) for each in found] == [
        (each["job"], each["rows"], each["exit"]) for each in wanted
    ]
    assert found[-1]["detail"]["breaks"] == wanted[-1]["detail"]["breaks"]
    places = [str(folder / "archive" / "messages") for folder in (there, here)]
    tables = [open_table(spark, path, "delta", "messages").read() for path in places]
    assert tables[0].count() == len(VERSIONS) * EACH
    assertDataFrameEqual(tables[0], tables[1])
    assert place.cluster.executors() == {"worker-0", "worker-1"}
