"""Methods from a table."""

from __future__ import annotations

import pytest

from gateway.classic.methods import Method
from gateway.classic.unserved import unserved
from gateway.wire.types import Integer, ShortString
from tests.classic.values import TABLES, check_there_and_back

FOUND = unserved("""
class file 70: priority octet, reply-to
    shortstr
file.open 70.40 -> open-ok: identifier shortstr, global bit
file.open-ok 70.41
file-other.stage 70.50 content: size timestamp
""")
OPEN, OPEN_OK, STAGE = FOUND.methods


def test_names_numbers_content_and_answers() -> None:
    assert [(method.title, method.__name__, method.key) for method in FOUND.methods] == [
        ("file.open", "FileOpen", 70 << 16 | 40),
        ("file.open-ok", "FileOpenOk", 70 << 16 | 41),
        ("file-other.stage", "FileOtherStage", 70 << 16 | 50),
    ]
    assert [method.content for method in FOUND.methods] == [False, False, True]
    assert (OPEN.replies, OPEN_OK.replies) == ((OPEN_OK,), ())
    assert OPEN("i", True).encode(TABLES) == b"\x00\x46\x00\x28\x01i\x01"
    assert STAGE(1).encode(TABLES) == b"\x00\x46\x00\x32" + bytes(7) + b"\x01"


def test_content_properties() -> None:
    ((number, (first, second)),) = FOUND.properties.items()
    assert (number, first[0], type(first[1]), second[0], type(second[1])) == (
        70, "priority", Integer, "reply_to", ShortString,
    )  # fmt: skip


@pytest.mark.parametrize("method", FOUND.methods, ids=lambda method: method.title)
def test_any_arguments_come_back(method: type[Method]) -> None:
    check_there_and_back(method)


def test_a_line_that_is_none() -> None:
    with pytest.raises(AssertionError, match="file"):
        unserved("file 70")
