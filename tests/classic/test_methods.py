"""The methods that both versions share: there and back for any value, cut, with trailing octets; numbers, titles and
replies."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.classic import methods as m
from gateway.classic.dialect import refused_method
from gateway.v08.dialect import DIALECTS as DIALECTS_08
from gateway.v091.dialect import DIALECTS as DIALECTS_091
from tests.classic.values import check_cut_and_trailing, check_there_and_back

METHODS = sorted(
    {
        value
        for value in vars(m).values()
        if isinstance(value, type) and issubclass(value, m.Method) and value is not m.Method
    },
    key=lambda method: (method.key, method.__name__),
)
EACH = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)


@EACH
def test_any_arguments_come_back(method: type[m.Method]) -> None:
    check_there_and_back(method)


@EACH
def test_cut_and_trailing(method: type[m.Method]) -> None:
    check_cut_and_trailing(method)


@pytest.mark.parametrize("dialect", [*DIALECTS_08.values(), *DIALECTS_091.values()], ids=lambda d: d.properties)
def test_a_dialects_numbers_are_its_own(dialect: Any) -> None:
    assert all(key == method.key for key, method in dialect.methods.items())
    for used in (dialect.connection_close, dialect.connection_close_ok, dialect.channel_open_ok, dialect.recover):
        assert dialect.methods[used.key] is used


@pytest.mark.parametrize(
    ("method", "title"),
    [
        (m.BasicGetOk, "basic.get-ok"),
        (m.ConnectionClose08, "connection.close"),
        (m.ConnectionUpdateSecretOk, "connection.update-secret-ok"),
        (m.TxSelect, "tx.select"),
    ],
)
def test_titles_are_the_specifications(method: type[m.Method], title: str) -> None:
    assert method.title == title


def test_replies_and_content() -> None:
    assert m.BasicGet.replies == (m.BasicGetOk, m.BasicGetEmpty)
    assert m.ConnectionOpen.replies == (m.ConnectionOpenOk, m.ConnectionRedirect, m.ConnectionRedirect09)
    assert m.BasicConsume.replies == m.BasicConsume08.replies == (m.BasicConsumeOk,)
    assert m.BasicPublish.replies == ()
    assert {method for method in METHODS if method.content} == {
        m.BasicPublish, m.BasicReturn, m.BasicDeliver, m.BasicGetOk
    }  # fmt: skip


def test_a_close_with_540_names_its_method() -> None:
    dialect = DIALECTS_091["rabbitmq"]
    key = m.BasicQos.key
    assert refused_method(dialect, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", key) == (
        "basic.qos: NOT_IMPLEMENTED - prefetch_size!=0 (1)"
    )
    assert refused_method(dialect, 540, "no basic.qos here", key) == "no basic.qos here"
    assert refused_method(dialect, 406, "other settings", key) == "other settings"
    assert refused_method(dialect, 540, "what is that?", 7 << 16 | 1) == "what is that?"
