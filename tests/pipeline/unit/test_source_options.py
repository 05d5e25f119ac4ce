"""Options and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ConfigurationError
from gateway.logs import columns
from gateway.pipeline.source import options
from gateway.pipeline.source.options import ReadOptions, WriteOptions, parse

URL = "http://127.0.0.1:8080"
READ = {"url": URL, "log": "messages"}


def test_names_are_compared_without_case_and_underscores() -> None:
    """Spark hands them over in lower case, and people write them as Spark's own are written."""
    found = parse(ReadOptions, {**READ, "failOnDataLoss": "false", "MAX_ROWS": "7", "rowsmax": "9", "pushdown": "TRUE"})
    assert (found.fail_on_data_loss, found.max_rows, found.rows_max, found.pushdown) == (False, 7, 9, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"log": "messages"}, "the option url is missing"),
        ({"url": URL}, "the option log is missing"),
        ({**READ, "log": "all"}, "the option log: 'all' is not one of events, messages"),
        ({**READ, "colour": "red"}, "there is no option 'colour'; there are .*cursor"),
        ({**READ, "rows_max": "1000001"}, "the option rows_max: expected an integer <= 1000000, got '1000001'"),
        ({**READ, "max_rows": "many"}, "the option max_rows: expected an integer, got 'many'"),
        ({**READ, "url": "127.0.0.1:8080"}, "url is '127.0.0.1:8080', not http://HOST:PORT"),
        ({**READ, "url": "http://h/?a=b"}, "not http://HOST:PORT"),
        ({**READ, "start": "first"}, "start is 'first'; a position names"),
        ({**READ, "end": "earliest"}, "end is earliest: nothing would be read"),
        ({**READ, "end": '{"0": -1}'}, "end is "),
        ({**READ, "kind": "confirmed"}, "the log of messages is not filtered by kind"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse(ReadOptions, given)


@pytest.mark.parametrize("name", ["api_key", "apiKey", "API_KEY", "key", "token", "password", "ledger_url", "dsn"])
def test_a_secret_is_no_option_and_is_not_repeated(name: str) -> None:
    """Options are in the plan, on Spark's pages and in checkpoints."""
    with pytest.raises(ConfigurationError, match="is no option, for Spark shows options to everybody: use") as caught:
        parse(ReadOptions, {**READ, name: "hush-hush"})
    assert "hush" not in str(caught.value)


def test_a_login_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="url has a login in it") as caught:
        parse(ReadOptions, {**READ, "url": "http://me:hush@127.0.0.1:8080"})
    assert "hush" not in str(caught.value)


def test_what_spark_hands_on_is_passed_over() -> None:
    parse(WriteOptions, {"url": URL, "broker": "orders", "checkpointLocation": "/there", "queryName": "q", "path": ""})


def test_filters_are_those_of_the_service() -> None:
    assert set(options.FILTER_OPTIONS) == {name for names in columns.FILTERS.values() for name in names}
    found = parse(ReadOptions, {**READ, "tap": "a,b", "queue": "q"})
    assert found.filters == {"tap": "a,b", "queue": "q"}


# --------------------------------------------------------------------------------------------------- secrets


def test_the_key_is_in_the_file_or_else_in_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    plain, named = parse(ReadOptions, READ), parse(ReadOptions, {**READ, "api_key_file": str(file)})
    assert options.api_key(plain, {}) == ""
    assert options.api_key(plain, {"GATEWAY_API_KEY": "from-variable"}) == "from-variable"
    assert options.api_key(named, {"GATEWAY_API_KEY": "from-variable"}) == "from-file"


def test_a_node_without_the_file_uses_its_variable_or_says_what_is_missing(tmp_path: Path) -> None:
    named = parse(ReadOptions, {**READ, "api_key_file": str(tmp_path / "none")})
    assert options.api_key(named, {"GATEWAY_API_KEY": "from-variable"}) == "from-variable"
    with pytest.raises(ConfigurationError, match=r"api_key_file .*none: No such file.* no variable GATEWAY_API_KEY"):
        options.api_key(named, {})


def test_adbc_needs_the_ledgers_url() -> None:
    with pytest.raises(ConfigurationError, match="transport=adbc needs the ledger's URL: ledger_url_file, or"):
        options.ledger_url(parse(ReadOptions, {**READ, "transport": "adbc"}), {})
