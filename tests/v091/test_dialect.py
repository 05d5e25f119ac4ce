"""The two dialects of 0-9-1."""

from __future__ import annotations

from gateway.v091.dialect import DIALECTS, QPID, RABBITMQ


def test_rabbitmq_is_the_default() -> None:
    assert list(DIALECTS) == ["rabbitmq", "qpid"]


def test_what_differs() -> None:
    assert (RABBITMQ.query_binding, QPID.query_binding) == (False, True)
    assert (RABBITMQ.absolute_expiration, QPID.absolute_expiration) == (False, True)
    assert (RABBITMQ.native_dead_letter, QPID.native_dead_letter) == (True, False)
    assert (RABBITMQ.nack_before_return, QPID.nack_before_return) == (False, True)
    assert (RABBITMQ.validates_headers, QPID.validates_headers) == (False, True)
    assert all(dialect.consume_arguments and dialect.capabilities_table for dialect in DIALECTS.values())
