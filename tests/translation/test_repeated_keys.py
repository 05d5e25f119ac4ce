"""Headers with a name twice: octets go along as they are, and where they must be read, they cannot be."""

from __future__ import annotations

from base64 import b64decode

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.errors import FrameSyntaxError
from gateway.fidelity import forward
from gateway.notation.messages import received
from tests.translation.ends import ENDS

TABLES = (
    {"n": 1, "key-a": "first", "key-b": "second"},
    {"n": {"key-a": 1, "key-b": 2}},
    {"n": [{"key-a": 1, "key-b": True}]},
)


def repeated(name: str, headers: dict[str, object]) -> Message:
    """A message of that end whose headers have ``key-a`` twice."""
    raw = ENDS[name].there_and_back(Message(b"body", Properties(headers=dict(headers)))).raw
    assert raw is not None
    octets = raw.octets.replace(b"\x05key-b", b"\x05key-a")
    assert octets != raw.octets
    return Message(b"body", None, RawProperties(octets, raw.dialect, raw.decode, raw.seam))


@pytest.mark.parametrize("headers", TABLES)
@pytest.mark.parametrize("name", ENDS)
def test_no_value_of_a_name_that_is_there_twice_is_dropped(name: str, headers: dict[str, object]) -> None:
    message = repeated(name, headers)
    assert message.raw is not None
    with pytest.raises(FrameSyntaxError, match="keys"):
        message.properties  # noqa: B018  # decodes on first use
    shown = received("", "", "", message)
    assert isinstance(shown.undecodable_properties, str)
    assert b64decode(shown.undecodable_properties) == message.raw.octets
    for end in ENDS.values():
        assert [loss.name for loss in end.losses(message)] in ([], ["untranslatable"])
    assert ENDS[name].losses(message) == ()
    if name == "0-10 transitional":
        return  # whose octets are decoded for every entry of the reserved header
    bridged = forward(message, {"id": "0190"})
    assert bridged.raw is not None
    assert bridged.raw.octets.count(b"\x05key-a") == 2
