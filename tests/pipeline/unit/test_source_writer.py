"""The writers as Spark calls them on the driver, and what the helpers tell both directions; without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from gateway.config import PipelineSettings
from gateway.errors import ConfigurationError
from gateway.pipeline import session
from gateway.pipeline.scratch import Scratch
from gateway.pipeline.settings import Pipeline
from gateway.pipeline.source import helpers
from gateway.pipeline.source.datasource import GatewayDataSource
from gateway.pipeline.source.listener import Listener
from gateway.pipeline.source.messages import Counts
from gateway.pipeline.source.writer import Written

SCHEMA = StructType().add("body", "string").add("key", "string")
URL = "http://127.0.0.1:9"


def source(**options: str) -> GatewayDataSource:
    return GatewayDataSource({"url": URL, "broker": "orders", **options})


def wrote(*rows: int) -> list[WriterCommitMessage | None]:
    return [Written(Counts(rows=count, published=count)) if count else None for count in rows]


def test_a_batch_leaves_its_counts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    writer = source(report_file=str(report)).writer(SCHEMA, overwrite=False)
    writer.commit(wrote(3, 4))  # type: ignore[arg-type]
    found = json.loads(report.read_text())
    assert (found["state"], found["counts"]["rows"], found["counts"]["published"]) == ("done", 7, 7)


def test_a_batch_that_fails_says_what_it_had_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Spark hands over None for tasks that did not come to an end."""
    report = tmp_path / "report.json"
    writer = source(report_file=str(report)).writer(SCHEMA, overwrite=False)
    writer.abort(wrote(3, 0, 0))  # type: ignore[arg-type]
    assert json.loads(report.read_text())["state"] == "aborted"
    assert caplog.records[0].gateway_fields["unfinished"] == 2  # type: ignore[attr-defined]


def test_batches_of_a_stream_add_up_each_of_them_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = tmp_path / "report.json"
    for batch, rows in ((0, 5), (1, 7), (1, 7), (0, 5), (2, 1)):  # killed between its commit and Spark's
        writer = source(report_file=str(report)).streamWriter(SCHEMA, overwrite=False)
        writer.commit(wrote(rows), batch)
    found = json.loads(report.read_text())
    assert (found["batch"], found["counts"]["rows"]) == (2, 13)
    source().streamWriter(SCHEMA, overwrite=False).abort(wrote(3, 0), 3)
    assert caplog.records[-1].gateway_fields == {"batch": 3, "unfinished": 1}  # type: ignore[attr-defined]


def test_messages_replace_nothing() -> None:
    for make in (source().writer, source().streamWriter):
        with pytest.raises(ConfigurationError, match='replace none: use the mode "append"'):
            make(SCHEMA, overwrite=True)


def test_rows_that_are_no_messages_are_refused_while_planning() -> None:
    with pytest.raises(ConfigurationError, match="nothing is made of the column 'colour'"):
        source().writer(StructType().add("body", "string").add("colour", "string"), overwrite=False)


# ------------------------------------------------------------------------------------------------------ helpers


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a session."""
    found = Scratch(str(tmp_path))
    monkeypatch.setattr(session, "_scratches", [found])
    yield found.path
    found.remove()


def test_secrets_reach_the_tasks_in_files_that_only_their_user_reads(scratch: Path) -> None:
    pipeline = Pipeline(url=URL, api_key="hush-key", ledger_dsn="postgresql://me:hush-word@127.0.0.1/ledger")
    options = {**helpers.write_options(pipeline, "orders"), **helpers._given(pipeline, "events", {})}
    assert "hush" not in str(options)
    assert options["transport"] == "adbc"
    for name, secret in (("api_key_file", pipeline.api_key), ("ledger_url_file", pipeline.ledger_dsn)):
        file = Path(options[name])
        assert file.parent == scratch
        assert file.read_text() == secret
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_of_the_settings_is_used_as_it_is(tmp_path: Path, scratch: Path) -> None:
    """It may be on every node, which one that is made here is not."""
    file = tmp_path / "key"
    file.write_text("hush-key\n")
    settings = PipelineSettings(api_key_file=str(file))
    assert helpers.write_options(Pipeline(settings, URL, "hush-key"), "b")["api_key_file"] == str(file)
    stronger = helpers.write_options(Pipeline(settings, URL, "of the environment"), "b")["api_key_file"]
    assert Path(stronger).read_text() == "of the environment"
    assert "api_key_file" not in helpers.write_options(Pipeline(url=URL), "b")


def test_without_a_session_there_is_no_folder_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_scratches", [])
    with pytest.raises(ConfigurationError, match="this process has no session of the pipeline"):
        helpers.write_options(Pipeline(url=URL, api_key="hush"), "b")


def test_what_a_job_gives_counts_more_than_what_the_settings_say() -> None:
    pipeline = Pipeline(PipelineSettings(rows_max=7, unavailable_timeout=3.0), url=URL)
    assert helpers._given(pipeline, "events", {})["rows_max"] == "7"
    assert helpers._given(pipeline, "events", {"rows_max": "9"})["rows_max"] == "9"
    with pytest.raises(ConfigurationError, match="there is no option 'colour'"):
        helpers.write_options(pipeline, "b", colour="red")


# ------------------------------------------------------------------------------------------------------ listener


def test_a_listener_tells_of_its_own_query_only() -> None:
    told: list[Any] = []
    follower: Any = SimpleNamespace(tell=told.append)
    listener = Listener(follower, "id-1")
    events: list[Any] = [SimpleNamespace(progress=SimpleNamespace(id=each)) for each in ("id-1", "id-2")]
    for event in events:
        listener.onQueryStarted(event)
        listener.onQueryProgress(event)
        listener.onQueryIdle(event)
        listener.onQueryTerminated(event)
    assert told == [events[0].progress]
