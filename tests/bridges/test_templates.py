"""Routing-key templates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.values import Typed
from gateway.bridges.templates import Template
from gateway.errors import EncodeError


def source(**headers: Any) -> Any:
    message = Message(b"", Properties(headers=headers or None))
    return SimpleNamespace(exchange="logs", routing_key="a.b", queue="q", message=message)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", ""),
        ("fixed", "fixed"),
        ("{routing_key}", "a.b"),
        ("x.{exchange}.{queue}.{routing_key}.y", "x.logs.q.a.b.y"),
        ("{{{routing_key}}}", "{a.b}"),
        ("{header:region}", "eu"),
        ("{header:n}-{header:flag}", "3-true"),
        ("{header:typed}", "7"),
    ],
)
def test_filled(text: str, key: str) -> None:
    assert Template(text).fill(source(region="eu", n=3, flag=True, typed=Typed("int8", 7))) == key


def test_what_is_constant() -> None:
    assert Template("a{{b").constant == "a{b"
    assert Template("{queue}").constant is None


@pytest.mark.parametrize("text", ["{", "}", "a{b", "{header:}", "{header}", "{nothing}", "{}", "{a{b}}"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(EncodeError, match="template"):
        Template(text)


@pytest.mark.parametrize(("headers", "says"), [({}, "no header 'x'"), ({"x": [1]}, "neither"), ({"x": 1.5}, "neither")])
def test_a_header_that_is_missing_or_no_text(headers: dict[str, Any], says: str) -> None:
    with pytest.raises(EncodeError, match=says):
        Template("{header:x}").fill(source(**headers))


def test_headers_that_cannot_be_read() -> None:
    from gateway.errors import FrameSyntaxError

    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no properties")

    broken = SimpleNamespace(message=Message(b"", None, RawProperties(b"\xff", "x", decode)))
    with pytest.raises(EncodeError, match="cannot be read: no properties"):
        Template("{header:x}").fill(broken)
