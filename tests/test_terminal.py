"""Tables, times and the line that is drawn over."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway import terminal
from gateway.commands import Failure
from gateway.terminal import Progress, bar, escaped, json_text, note, table_lines
from gateway.validation import ago

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_the_bar() -> None:
    assert bar(0, None) == bar(3, 0) == ""
    assert bar(1, 2) == "[###############---------------]  50%"
    assert bar(5, 2).endswith("100%")


def test_on_a_terminal_the_line_is_drawn_over(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(terminal.sys.stderr, "isatty", lambda: True, raising=False)
    screen = Progress(as_json=False)
    screen.show({}, "one")
    screen.show({}, "two")
    screen.close()
    assert capsys.readouterr().err == f"{terminal.ERASE}one{terminal.ERASE}two\n"


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
