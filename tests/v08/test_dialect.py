"""The three dialects of 0-8."""

from __future__ import annotations

from gateway.v08.dialect import DIALECTS, PUBLISHED, QPID, RABBITMQ


def test_rabbitmq_is_the_default() -> None:
    assert list(DIALECTS) == ["rabbitmq", "qpid", "published"]


def test_recover_ok() -> None:
    assert RABBITMQ.recover_ok is not None
    assert RABBITMQ.recover_ok.key == 60 << 16 | 111
    assert QPID.recover_ok is not None
    assert QPID.recover_ok.key == 60 << 16 | 101
    assert PUBLISHED.recover_ok is None


def test_what_differs() -> None:
    assert (RABBITMQ.consume_arguments, QPID.consume_arguments, PUBLISHED.consume_arguments) == (False, True, False)
    assert (RABBITMQ.unbind_queue, QPID.unbind_queue, PUBLISHED.unbind_queue) == (True, True, False)
    assert (RABBITMQ.absolute_expiration, QPID.absolute_expiration) == (False, True)
    assert (RABBITMQ.release_many, QPID.release_many) == (True, False)
    assert all(dialect.cluster_id and not dialect.capabilities_table for dialect in DIALECTS.values())
