"""Dialects: how one is chosen, and what they differ in."""

from __future__ import annotations

import pytest

from gateway.classic import methods as m
from gateway.classic.dialect import choose, table_of
from gateway.v08.dialect import DIALECTS as DIALECTS_08
from gateway.v091.dialect import DIALECTS as DIALECTS_091


@pytest.mark.parametrize(
    ("product", "override", "name"),
    [
        ("RabbitMQ", None, "rabbitmq"),
        ("Apache Qpid Broker-J Core", None, "qpid"),
        ("qpid", None, "qpid"),
        ("something else", None, "rabbitmq"),
        ("", None, "rabbitmq"),
        ("RabbitMQ", "qpid", "qpid"),
        ("Qpid", "rabbitmq", "rabbitmq"),
        ("RabbitMQ", "unheard-of", "rabbitmq"),
    ],
)
def test_choose(product: str, override: str | None, name: str) -> None:
    for dialects in (DIALECTS_08, DIALECTS_091):
        assert choose(dialects, product, override).name == name


def test_the_published_0_8_is_only_by_configuration() -> None:
    assert choose(DIALECTS_08, "OpenAMQ", "published").access_request
    assert "published" not in DIALECTS_091


def test_octets_pass_only_within_one_dialect() -> None:
    every = [*DIALECTS_08.values(), *DIALECTS_091.values()]
    assert len({dialect.properties for dialect in every}) == len(every)


def test_close_has_two_numbers() -> None:
    assert DIALECTS_08["rabbitmq"].methods[10 << 16 | 60] is m.ConnectionClose08
    assert DIALECTS_091["rabbitmq"].methods[10 << 16 | 60] is m.ConnectionBlocked
    assert DIALECTS_091["rabbitmq"].methods[10 << 16 | 50] is m.ConnectionClose
    assert DIALECTS_08["rabbitmq"].methods[10 << 16 | 50] is m.ConnectionRedirect


def test_later_groups_replace_earlier_ones() -> None:
    assert table_of((m.BasicConsume,), (m.BasicConsume08,)) == {60 << 16 | 20: m.BasicConsume08}
