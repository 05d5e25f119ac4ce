"""What a job is told from outside, and which of file, environment and options counts."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from gateway.errors import ConfigurationError
from gateway.pipeline.settings import Pipeline, load


def write(folder: Path, text: str) -> str:
    path = folder / "gateway.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_without_anything_it_is_the_gateway_on_this_machine() -> None:
    pipeline = load(None, {}, {})
    assert pipeline.url == "http://127.0.0.1:8080"
    assert (pipeline.api_key, pipeline.ledger_dsn) == ("", "")
    assert pipeline.storage == os.path.abspath("gateway-pipeline")
    assert pipeline.local
    assert pipeline.place("archive", "messages") == f"{pipeline.storage}/archive/messages"


def test_options_count_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[pipeline]\nurl = "http://file:1"\nrows_max = 10\nmemory = "1g"')
    environ = {
        "GATEWAY_PIPELINE__ROWS_MAX": "20",
        "GATEWAY_PIPELINE__TIMEOUT": "2.5",
        "GATEWAY_PIPELINE__DIRECT": "true",
    }
    pipeline = load(path, {"url": "http://option:3/", "storage": None}, environ)
    assert pipeline.url == "http://option:3"
    assert (pipeline.settings.rows_max, pipeline.settings.timeout, pipeline.settings.memory) == (20, 2.5, "1g")
    assert load(path, {}, environ | {"GATEWAY_URL": "http://environment:2"}).url == "http://environment:2"
    assert load(None, {}, {"GATEWAY_CONFIG": path}).settings.rows_max == 10


def test_settings_of_spark_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[pipeline.spark]\n"spark.a" = "1"\n"spark.b" = "2"')
    assert load(path, {"spark": {"spark.b": "3"}}, {}).settings.spark == {"spark.a": "1", "spark.b": "3"}


def test_the_key_comes_from_the_option_the_environment_or_a_file_and_is_shown_nowhere(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("from file\n", encoding="utf-8")
    path = write(tmp_path, f'[pipeline]\napi_key_file = "{key}"')
    assert load(path, {}, {}).api_key == "from file"
    assert load(path, {}, {"GATEWAY_API_KEY": "from environment"}).api_key == "from environment"
    pipeline = load(path, {"api_key": "from option"}, {"GATEWAY_API_KEY": "from environment"})
    assert pipeline.api_key == "from option"
    assert "from option" not in repr(pipeline)


def test_straight_from_the_ledger_it_is_the_ledger_of_the_file(tmp_path: Path) -> None:
    url = "postgresql://gateway:secret@db/gateway"
    path = write(tmp_path, f'[ledger]\nurl = "{url}"\n[pipeline]\ndirect = true')
    pipeline = load(path, {}, {})
    assert pipeline.ledger_dsn == url
    assert "secret" not in repr(pipeline)
    here = load(None, {"direct": True}, {"GATEWAY_DATA_DIR": str(tmp_path)})
    assert here.ledger_dsn == f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "ftp://x"', "pipeline.url is 'ftp://x', not http://HOST:PORT"),
        ('url = "http:///v1"', "pipeline.url is 'http:///v1'"),
        ('storage = "s3a://bucket/x"', "an archive of plain Parquet needs a file system"),
        ('api_key_file = "/nowhere/key"', "pipeline.api_key_file /nowhere/key: .*No such file"),
        ('memory = "2 GB"', r"does not match|matching regex"),
        ("rows_max = 1000001", "rows_max"),
        ('format = "delta"', "format: there is no such setting"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(write(tmp_path, f"[pipeline]\n{text}"), {}, {})


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"GATEWAY_PIPELINE__ROWS_MAX: expected an integer, got 'many' \(pipeline\.rows_max\)"
    ):
        load(None, {}, {"GATEWAY_PIPELINE__ROWS_MAX": "many"})


def test_an_object_store_takes_delta(tmp_path: Path) -> None:
    pipeline = load(write(tmp_path, '[pipeline]\nstorage = "s3a://bucket/x/"\narchive = "delta"'), {}, {})
    assert not pipeline.local
    assert pipeline.place("archive") == "s3a://bucket/x/archive"


def test_a_run_is_known_by_its_job_options_gateway_and_place() -> None:
    pipeline = Pipeline(storage="/a")
    same = pipeline.fingerprint("rollup", {"a": 1, "b": None})
    assert same == Pipeline(storage="/a", api_key="x").fingerprint("rollup", {"b": None, "a": 1})
    others = {
        pipeline.fingerprint("archive", {"a": 1, "b": None}),
        pipeline.fingerprint("rollup", {"a": 2, "b": None}),
        Pipeline(storage="/b").fingerprint("rollup", {"a": 1, "b": None}),
        Pipeline(storage="/a", url="http://other").fingerprint("rollup", {"a": 1, "b": None}),
    }
    assert len(others | {same}) == 5


def test_it_can_be_sent_to_other_processes() -> None:
    pipeline = load(None, {"api_key": "k"}, {})
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
