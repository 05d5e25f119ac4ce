"""0-8 and 0-9-1: every class, method, field, reply, content flag and constant of the definitions, and ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.classic import constants, frames
from gateway.classic.client_requests import ASK
from gateway.v08 import dialect as v08
from gateway.v091 import dialect as v091
from gateway.wire import types
from tests.definitions import definitions
from tests.definitions.classic import REASONS, SAME, SPOKEN, Spoken, differences, name_of
from tests.definitions.definitions import Definition, definition, facts, parsed, read, source, written

FILES = pytest.mark.parametrize("file", SPOKEN)


@FILES
def test_no_difference_without_its_reason(file: str) -> None:
    found = list(differences(definition(file), SPOKEN[file]))
    assert len(found) == len(set(found))
    assert set(found) == {line for lines in REASONS[file].values() for line in lines}


@FILES
def test_nothing_is_missing_and_nothing_is_shorter(file: str) -> None:
    """The kinds of difference that no reason may explain."""
    for lines in REASONS[file].values():
        assert not [line for line in lines if "theirs alone" in line or "fields are" in line or "of type" in line]
        assert not [line for line in lines if "content" in line]


@FILES
def test_the_whole_definition_was_read(file: str) -> None:
    said = definition(file)
    assert (len(said.methods), len(said.classes)) == (SPOKEN[file].methods, SPOKEN[file].classes)
    assert {constant.error for constant in said.constants} == {"", "soft-error", "hard-error"}


@FILES
def test_every_domain_is_a_type_of_ours(file: str) -> None:
    said = definition(file)
    ours = {name_of(kind) for kind in vars(types).values() for kind in getattr(kind, "__metadata__", ())}
    used = {said.type_of(field) for method in said.methods for field in method.fields}
    used |= {said.type_of(field) for above in said.classes for field in above.properties}
    used |= set(said.domains.values())
    assert {SAME.get(name, name) for name in used} <= ours


def test_the_facts_are_what_the_definitions_say() -> None:
    """Of those that are found; and what is written is what is read."""
    for file in SPOKEN:
        there = source(file)
        said = facts(file) if there is None else read(there)
        assert said == facts(file)
        assert written(said) == definitions.facts_path(file).read_text()


def test_where_the_definitions_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "amqp0-8.xml").write_text(
        '<amqp><constant name="not found" value="404" class="soft error"/><domain name="queue name" type="shortstr"/>'
        '<class name="basic" index="60"><field name="user id" type="shortstr"/>'
        '<method name="get" index="70" synchronous="1" content="1"><response name="get-ok"/>'
        '<field name="queue" domain="queue name"/></method></class></amqp>'
    )
    monkeypatch.setenv(definitions.VARIABLE, str(tmp_path))
    small = definition("amqp0-8.xml")
    assert written(small).splitlines() == [
        "constant not-found 404 soft-error",
        "domain queue-name shortstr",
        "class basic 60: user-id shortstr",
        "method basic.get 70 synchronous content -> get-ok: queue queue-name",
    ]
    assert parsed(written(small)) == small
    assert definition("amqp0-9-1.fixed.xml") == facts("amqp0-9-1.fixed.xml")
    monkeypatch.setenv(definitions.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="GATEWAY_SPEC_DIR"):
        definition("amqp0-8.xml")
    monkeypatch.delenv(definitions.VARIABLE)
    assert definitions.folder() is None
    assert definition("amqp0-8.xml") == facts("amqp0-8.xml")


def _changed(change: str, to: str) -> Definition:
    text = written(facts("amqp0-8.xml"))
    assert text.count(change) == 1
    return parsed(text.replace(change, to))


@pytest.mark.parametrize(
    ("change", "to", "line"),
    [
        ("constant not-found 404 ", "constant not-found 405 ", "constant not-found: (405, 'soft-error') is (404"),
        ("404 soft-error", "404 hard-error", "constant not-found: (404, 'hard-error') is (404, 'soft-error')"),
        ("constant frame-trace 7\n", "", "constant frame-trace: ours alone"),
        ("class file 70", "class file 71", "class file: 71 is 70"),
        ("filename shortstr", "filename longstr", "class file: field filename of type longstr is of type shortstr"),
        ("filename shortstr", "file shortstr", "class file: field file is filename"),
        ("file.stage 50 content", "file.stage 50", "file.stage: content False is True"),
        ("file.stage 50 content", "file.stage 51 content", "file.stage: theirs alone"),
        ("file.stage 50 content", "file.stage 51 content", "file.stage 70.50: ours alone"),
        ("-> open-ok redirect", "-> open-ok", "connection.open: replies ['connection.open-ok'] are ["),
        ("identifier shortstr, content-size longlong", "identifier shortstr", "file.open: 1 fields are 2"),
        ("method dtx.select-ok 11 synchronous", "method dtx.select-ok 11", "dtx.select-ok: synchronous False is True"),
        ("method dtx.start ", "method dtx.begin ", "dtx.begin: is dtx.start"),
    ],
)
def test_each_kind_of_difference_is_found(change: str, to: str, line: str) -> None:
    usual = set(differences(facts("amqp0-8.xml"), SPOKEN["amqp0-8.xml"]))
    found = set(differences(_changed(change, to), SPOKEN["amqp0-8.xml"])) - usual
    assert [said for said in found if said.startswith(line)], found


def test_a_constant_of_theirs_alone_is_found() -> None:
    ours: Spoken = replace(SPOKEN["amqp0-8.xml"], constants=constants.OF_0_8[1:])
    found = list(differences(facts("amqp0-8.xml"), ours))
    assert "constant frame-method: theirs alone" in found


@FILES
def test_reply_codes_end_what_the_definitions_say(file: str) -> None:
    for constant in definition(file).constants:
        if constant.error:
            hard = constant.value in frames.CONNECTION_CODES or constant.value in constants.SPARED
            assert hard == (constant.error == "hard-error"), constant
    assert set(constants.SPARED) == {506}


def test_the_numbers_that_frames_are_made_with() -> None:
    values = {constant.name: constant.value for constant in constants.FRAMES}
    assert values == {
        "frame-method": frames.METHOD,
        "frame-header": frames.HEADER,
        "frame-body": frames.BODY,
        "frame-heartbeat": frames.HEARTBEAT,
        "frame-min-size": 4096,
        "frame-end": frames.FRAME_END,
    }


def test_what_a_client_waits_for_is_declared_as_a_reply() -> None:
    methods = {*v08.RABBITMQ.methods.values(), *v08.PUBLISHED.methods.values(), *v091.RABBITMQ.methods.values()}
    replies = {reply for method in methods for reply in method.replies}
    assert {answer for ask in ASK.values() for answer in ask.answers} <= replies
