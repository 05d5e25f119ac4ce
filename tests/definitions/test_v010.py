"""Everything that the definitions of 0-10 say, beside our classes; the facts beside the definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.definitions import definitions
from tests.definitions.definitions import facts_path, source
from tests.definitions.v010 import REASONS, SPOKEN, differences
from tests.definitions.v010_reader import ERRATA, FILES, FINAL, definition, facts, parsed, read, written


@pytest.mark.parametrize("file", FILES)
def test_every_difference_has_its_reason(file: str) -> None:
    said = definition(file)
    assert len(said.segments) == SPOKEN[file].segments
    assert [difference for difference in differences(file, said) if difference not in REASONS] == []


def test_every_reason_has_its_difference() -> None:
    found = {difference for file in FILES for difference in differences(file, definition(file))}
    assert sorted(REASONS.keys() - found) == []


@pytest.mark.parametrize("file", FILES)
def test_the_facts_are_what_the_definition_says(file: str) -> None:
    """Where it is found; and what is written is what is read."""
    there = source(file)
    said = facts(file) if there is None else read(there)
    assert said == facts(file)
    assert facts_path(file).read_text() == written(said, FINAL if file == ERRATA else "")


@pytest.mark.parametrize("file", FILES)
def test_facts_are_read_as_they_are_written(file: str) -> None:
    said = facts(file)
    assert parsed(written(said)) == said
    assert (len(said.types), len(said.domains), len(said.structs), len(said.constants)) == (45, 25, 17, 1)


def test_the_facts_stand_in_for_the_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(definitions.VARIABLE, str(tmp_path))
    assert [definition(file) for file in FILES] == [facts(file) for file in FILES]


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("constant MIN-MAX-FRAME-SIZE 4096", "constant MIN-MAX-FRAME-SIZE 8192", "constant MIN-MAX-FRAME-SIZE"),
        ("type uuid 0x0048 fixed 16", "type uuid 0x0049 fixed 16", "type uuid"),
        ("type uuid 0x0048 fixed 16", "type uuid 0x0048 fixed 8", "type uuid"),
        ("type sequence-set - variable 2", "type sequence-set - variable 4", "type sequence-set"),
        ("domain track uint8: control 0, command 1", "domain track uint8: control 0, command 2", "domain track"),
        ("struct session.header - size 1 pack 1", "struct session.header - size 2 pack 1", "struct session.header"),
        ("struct dtx.xid - size 2", "struct dtx.xid 0x0605 size 2", "struct dtx.xid"),
        ("control connection.secure 0x0103 to client", "control connection.secure 0x0103 to server", "to server is"),
        ("-> connection.tune-ok", "-> connection.open-ok", "connection.tune: answers"),
        ("control session.gap 0x020d", "command session.gap 0x020d", "session.gap: command"),
        ("result message.acquired", "result message.reply-to", "message.acquire: result"),
        ("required-header file.file-properties", "header file.file-properties", "file.stage: header"),
        ("delivery-tag uint64, multiple bit", "multiple bit, delivery-tag uint64", "file.ack: fields"),
        ("prefetch-size uint32, prefetch-count uint16", "prefetch-size uint64, prefetch-count uint16", "prefetch-size"),
        ("locale str8 required", "locale str8", "connection.start-ok.locale: optional"),
        ("unit message.credit-unit", "unit message.flow-mode", "message.flow.unit: type"),
        ("command tx.select 0x0501 to server\n", "", "tx.select: ours alone"),
        ("type bin8 0x0000 fixed 1\n", "", "type 0x00: ours alone"),
        ("type bin8 0x0000 fixed 1\n", "type bin8 0x0099 fixed 1\n", "type bin8: theirs alone"),
    ],
)  # fmt: skip
def test_what_differs_is_found(old: str, new: str, difference: str) -> None:
    text = written(facts(FINAL))
    assert old in text
    found = [line for line in differences(FINAL, parsed(text.replace(old, new))) if line not in REASONS]
    assert any(difference in line for line in found), found
