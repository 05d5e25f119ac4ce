"""What a command says of itself."""

from __future__ import annotations

import pytest

from gateway.session import Role
from gateway.v010.commands import COMMANDS, Command
from gateway.v010.structs import STRUCTS, SessionHeader


@pytest.mark.parametrize("kind", COMMANDS.values(), ids=lambda kind: kind.spelled)
def test_what_it_names_is_there(kind: type[Command]) -> None:
    assert kind.to <= {Role.CLIENT, Role.SERVER}
    assert kind.to
    assert set(kind.answers) <= {other.spelled for other in COMMANDS.values()}
    assert kind.result is None or STRUCTS[kind.result.code] is kind.result
    assert set(kind.header or ()) <= STRUCTS.keys()
    assert kind.header is not None or not kind.header_required


def test_the_session_header_is_the_declared_one() -> None:
    for sync in (False, True):
        segment = COMMANDS[0x0301]().encode(sync)
        assert SessionHeader.decode_sized(segment, 2) == (SessionHeader(sync), 4)
