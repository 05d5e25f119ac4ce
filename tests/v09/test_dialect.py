"""The three dialects of 0-9, and their methods."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.classic import methods as m
from gateway.v09.dialect import DIALECTS, PUBLISHED, QPID, RABBITMQ
from gateway.v09.methods import OF_QPID, OF_RABBITMQ, OF_THE_DEFINITION, BasicRecoverSync, BasicRecoverSyncOk
from gateway.v09.unserved import UNSERVED
from tests.classic.values import check_cut_and_trailing, check_there_and_back


def test_rabbitmq_is_the_default() -> None:
    assert list(DIALECTS) == ["rabbitmq", "qpid", "published"]


def test_what_differs() -> None:
    assert (RABBITMQ.recover, QPID.recover, PUBLISHED.recover_ok) == (m.BasicRecover, BasicRecoverSync, None)
    assert (RABBITMQ.query_binding, QPID.query_binding) == (False, True)
    assert (RABBITMQ.absolute_expiration, QPID.absolute_expiration) == (False, True)
    assert [dialect.access_request for dialect in DIALECTS.values()] == [False, False, True]
    assert all(dialect.cluster_id and dialect.consume_arguments for dialect in DIALECTS.values())
    assert all(dialect.redirect is m.ConnectionRedirect09 for dialect in DIALECTS.values())


def test_they_are_none_of_the_shared_ones() -> None:
    own = {method.key for method in (*OF_THE_DEFINITION, *OF_QPID, *OF_RABBITMQ, *UNSERVED.methods)}
    assert not own & {method.key for method in m.SHARED}
    assert len(own) == len(OF_THE_DEFINITION) + len(OF_QPID) + len(OF_RABBITMQ) + len(UNSERVED.methods)
    assert all(QPID.methods[method.key] is method for method in OF_QPID)
    assert all(RABBITMQ.methods[method.key] is method for method in OF_RABBITMQ)
    for dialect in DIALECTS.values():
        assert all(dialect.methods[method.key] is method for method in (*OF_THE_DEFINITION, *UNSERVED.methods))


def test_the_classes_that_no_session_serves() -> None:
    assert Counter(method.class_id for method in UNSERVED.methods) == {20: 4, 70: 14, 80: 9, 100: 4, 110: 1, 120: 15}
    assert {number: len(names) for number, names in UNSERVED.properties.items()} == {70: 9, 80: 5, 110: 5}


@pytest.mark.parametrize("method", [*OF_THE_DEFINITION, *OF_QPID], ids=lambda method: method.__name__)
def test_any_arguments_come_back(method: type[m.Method]) -> None:
    check_there_and_back(method)
    check_cut_and_trailing(method)


def test_octets() -> None:
    """Written by hand from the definition."""
    assert BasicRecoverSync(True).encode() == b"\x00\x3c\x00\x66\x01"
    assert BasicRecoverSyncOk().encode() == b"\x00\x3c\x00\x65"
    assert BasicRecoverSync.replies == (BasicRecoverSyncOk,)
    assert (BasicRecoverSync.title, BasicRecoverSyncOk.title) == ("basic.recover-sync", "basic.recover-sync-ok")
    assert m.ConnectionRedirect09("host").encode() == b"\x00\x0a\x00\x2a\x04host\x00"
