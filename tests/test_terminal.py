"""Tables, times and the line that is drawn over."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from gateway import terminal
from gateway.commands import Failure
from gateway.terminal import (
    COLORS,
    OUTPUTS,
    Estimate,
    Progress,
    bar,
    duration_text,
    escaped,
    fitted,
    json_text,
    note,
    output_options,
    percent,
    print_json,
    print_json_line,
    print_table,
    table_lines,
    yaml_text,
)
from gateway.validation import ago

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_the_bar() -> None:
    assert bar(0, None) == bar(3, 0) == ""
    assert bar(1, 2) == "[##########----------]  50%"
    assert bar(5, 2).endswith("100%")
    assert bar(999, 1000) == "[###################-]  99%"
    assert [percent(0, None), percent(0, 7), percent(1, 3), percent(7, 7)] == ["", "0%", "33%", "100%"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"), (59.4, "59 s"), (59.6, "1 min"), (3_500, "58 min"), (3_599, "1 h 0 min"), (9_000, "2 h 30 min"),
        (86_390, "1 d 0 h"), (100_000, "1 d 4 h"), (5e8, "5,787 d"),
    ],
)  # fmt: skip
def test_a_time_span_is_said_in_one_or_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_remaining_time_goes_by_how_fast_the_rest_became_less() -> None:
    estimate = Estimate()
    assert [estimate.text(done, 100, now) for done, now in ((0, 0.0), (5, 1.0))] == ["", ""], "not known yet"
    assert estimate.text(10, 100, 2.0) == "about 18 s left"
    assert estimate.text(20, 100, 4.0) == "about 16 s left"
    assert estimate.text(20, 100, 32.0) == "about 4 min left", "the last seconds say it"
    assert estimate.text(20, 100, 64.0) == "", "nothing is done any more"
    assert estimate.text(100, 100, 65.0) == ""


def test_there_is_no_estimate_where_more_comes_than_is_done_or_the_total_is_unknown() -> None:
    estimate = Estimate()
    assert [estimate.text(done, done + 10 + done, float(done)) for done in range(0, 30, 3)] == [""] * 10
    assert estimate.text(60, 70, 40.0) == "about 5 s left", "the rest becomes less now"
    assert Estimate().text(5, None, 9.0) == ""


def test_on_a_terminal_the_line_is_drawn_over(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True, raising=False)
    screen = Progress(as_json=False)
    screen.show({}, "one")
    screen.show({}, "two")
    screen.close()
    assert capsys.readouterr().err == f"{terminal.ERASE}one{terminal.ERASE}two\n"


def test_the_last_line_is_shown_as_a_whole(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Progress, "is_terminal", staticmethod(lambda is_result: True))
    monkeypatch.setenv("COLUMNS", "20")
    screen = Progress(as_json=False, is_result=True)
    screen.show({}, "one " * 6)
    screen.close()
    assert capsys.readouterr() == (f"{terminal.ERASE}one one one one one{terminal.ERASE}{'one ' * 6}\n", "")


def test_what_was_asked_for_is_a_line_each_time(capsys: Any) -> None:
    screen = Progress(as_json=False, is_result=True)
    for line in ("one", "one"):
        screen.show({}, line)
    screen.close()
    assert capsys.readouterr() == ("one\none\n", "")


def test_with_tabs_each_look_is_a_row(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(Progress, "is_terminal", staticmethod(lambda is_result: True))
    with click.Context(rows) as context:
        context.meta["gateway.output"] = "tsv"
        screen = Progress(as_json=False, is_result=True)
        for done in (1, 2):
            screen.show({"name": "a", "done": done, "losses": {}}, f"60%  {done}")
        screen.close()
    assert capsys.readouterr() == ("name\tdone\na\t1\na\t2\n", "")


def test_elsewhere_each_line_that_is_new_is_one(capsys: Any) -> None:
    screen = Progress(as_json=False)
    for line in ("one", "one", "two"):
        screen.show({}, line)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_as_json_each_object_that_is_new_is_a_line_on_stdout(capsys: Any) -> None:
    screen = Progress(as_json=True)
    for done in (1, 1, 2):
        screen.show({"done": done}, "")
    assert capsys.readouterr().out == '{"done": 1}\n{"done": 2}\n'


def test_columns_are_as_wide_as_they_need_to_be_and_numbers_end_under_each_other() -> None:
    lines = table_lines(("NAME", "N"), [("a", 1), ("long name", 1_000), (None, True)], frozenset({1}))
    assert lines == ["NAME          N", "a             1", "long name  1000", "-           yes"]


@click.command()
@output_options
def rows(as_json: bool) -> None:
    """A verb with a table."""
    if as_json:
        print_json({"rows": [{"name": "a b", "state": "no"}]})
    else:
        print_table(("NAME", "STATE", "REASON"), [("a\tb", "error", None), ("c", "odd", "x" * 100)])


def printed(*options: str) -> str:
    result = CliRunner().invoke(rows, options)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_that_goes_into_a_file_is_whole() -> None:
    assert printed() == printed("--output", "wide") == printed("-o", "table")
    assert printed().splitlines()[2] == "c     odd    " + "x" * 100


def test_with_tabs_a_cell_is_one_field() -> None:
    assert [line.split("\t") for line in printed("-o", "tsv").splitlines()] == [
        ["NAME", "STATE", "REASON"], ["a\\tb", "error", "-"], ["c", "odd", "x" * 100],
    ]  # fmt: skip


def test_data_are_json_or_yaml() -> None:
    assert printed("--json") == printed("-o", "json") == printed("-o", "json", "--json")
    assert json.loads(printed("--json")) == yaml.safe_load(printed("-o", "yaml"))
    assert printed("-o", "yaml") == "rows:\n- name: a b\n  state: 'no'\n"


def test_two_forms_at_once_are_refused() -> None:
    result = CliRunner().invoke(rows, ["--json", "-o", "yaml"])
    assert result.exit_code == 2
    assert "give one of them" in result.stderr
    unknown = CliRunner().invoke(rows, ["-o", "xml"])
    assert unknown.exit_code == 2
    assert all(name in unknown.stderr for name in OUTPUTS)


@pytest.mark.parametrize(
    "value", ["\x1b[2J", "a\u202eb", "\x85", "\x9b0m", "no", "1e3", "ü", "2026-01-01", "", None, [], {}]
)
def test_yaml_says_what_json_says_and_sends_nothing_to_the_terminal(value: Any) -> None:
    text = yaml_text({"a": [value]})
    assert yaml.safe_load(text) == {"a": [value]}
    assert text == escaped(text)


def test_several_values_are_documents_of_yaml(capsys: Any) -> None:
    with click.Context(rows) as context:
        context.meta["gateway.output"] = "yaml"
        print_json_line({"n": 1})
        print_json_line("two")
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [{"n": 1}, "two"]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_a_terminal_long_texts_are_cut(columns: int) -> None:
    heads, cells = ("NAME", "STATE", "REASON"), [["orders-of-today", "paused", "r" * 200], ["b", "error", "short"]]
    shown, cut = fitted(heads, cells, columns)
    assert list(shown) == list(heads)
    assert max(map(len, table_lines(shown, cut))) == columns
    assert [line[:2] for line in cut] == [line[:2] for line in cells]
    assert cut[0][2].endswith("r…")
    assert cut[1] == cells[1]


def test_columns_that_matter_least_are_left_out_first() -> None:
    heads = ("NAME", "STATE", "FROM", "RATE", "LAG", "REASON")
    line = ("move", "error", "local-0-9-1 a-long-name-of-a-queue", "0/s", "-", "no queue 'a-long-name-of-a-queue'")
    shown, [cut] = fitted(heads, [line], 70, whole=("FROM",), first_out=("LAG", "RATE"))
    assert (shown[:3], shown[-1], cut[2]) == (["NAME", "STATE", "FROM"], "REASON", line[2])
    assert "RATE" in shown or "LAG" not in shown
    shown, [cut] = fitted(heads, [line], 60, whole=("FROM",), first_out=("LAG", "RATE"))
    assert (list(shown), cut[2]) == (["NAME", "STATE", "FROM", "REASON"], line[2])


def test_names_states_times_and_numbers_are_never_cut() -> None:
    heads = ("ID", "AT", "STATE", "BROKER", "OCTETS")
    line = ["01a21b1b-e8fd-7000-9847-213f7ce8f3ad", "2026-11-27T03:45:47.794008Z", "confirmed", "b" * 30, "1,000,000"]
    for columns in range(1, 140):
        shown, [cut] = fitted(heads, [line], columns)
        assert list(shown) == list(heads[: len(cut)])
        for head, before, after in zip(shown, line[: len(cut)], cut, strict=True):
            assert head == "BROKER" or after in (before, before.replace(".794008", "")), columns
        assert columns < 36 or len(table_lines(shown, [cut])[1]) <= columns


def test_what_is_left_out_of_a_table_is_told(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("NAME", "TOTAL", "SHARE"), [("orders", "1,000,000", "250,000")])
    told = capsys.readouterr()
    assert click.unstyle(told.out) == "NAME    TOTAL\norders  1,000,000\n"
    assert told.err == "Left out for want of room: SHARE. --output wide shows all.\n"


def test_a_state_has_a_color_on_a_terminal_unless_none_is_wanted(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for color in (True, False):
        with click.Context(rows, color=color):
            print_table(("NAME", "STATE", "REASON"), [("a", "error", ""), ("b", "running", ""), ("c", "odd", "")])
        shown[color] = capsys.readouterr().out
    assert "a     \x1b[31merror\x1b[0m" in shown[True]
    assert "b     \x1b[32mrunning\x1b[0m" in shown[True]
    assert click.unstyle(shown[True]) == shown[False]
    assert set(COLORS.values()) == {"green", "yellow", "red"}


def test_what_would_move_the_cursor_is_shown() -> None:
    assert table_lines(("A",), [("\x1b[2J\n",)])[1] == "\\x1b[2J\\n"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", NOW.replace(hour=11, minute=58, second=30)),
        ("2h", NOW.replace(hour=10)),
        ("1.5d", NOW.replace(day=21, hour=0)),
        ("2026-11-22T00:00:00Z", None),
        ("2 h", None),
    ],
)
def test_so_long_ago(text: str, at: datetime | None) -> None:
    assert ago(text, NOW) == at


HOSTILE = "a\x1b]0;title\x07\x00\x7f\x9b31m\u202eb"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_sends_no_control_character(indent: int | None) -> None:
    text = json_text({HOSTILE: [HOSTILE, "é\n漢\u200d"]}, indent)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "é" in text
    assert json.loads(text) == {HOSTILE: [HOSTILE, "é\n漢\u200d"]}


def test_text_sends_no_control_character() -> None:
    assert escaped(HOSTILE) == r"a\x1b]0;title\x07\x00\x7f\x9b31m\u202eb"
    assert escaped("two\nlines\tand a tab, é 漢 \u200d") == "two\nlines\tand a tab, é 漢 \u200d"


def test_notes_and_failures_send_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    note(HOSTILE)
    Failure(f"404: no queue {HOSTILE!s}").show()
    assert "\x1b" not in capsys.readouterr().err
