"""Names as octets, documents as JSON."""

from __future__ import annotations

import pytest

from gateway.ledger.encoding import document, octets, parse, text


@pytest.mark.parametrize("name", [b"", b"orders", "Bestellungen/é".encode(), b"\x00\xff\xfe", bytes(range(255))])
def test_names_keep_every_octet(name: bytes) -> None:
    assert octets(text(name)) == name


@pytest.mark.parametrize(
    "value",
    [{}, {"code": 312, "text": "NO_ROUTE"}, {"name": "a\x00b"}, {"name": "\udcff"}, {"big": 2**64 - 1, "list": [None]}],
)
def test_documents_come_back(value: dict[str, object]) -> None:
    assert parse(document(value)) == value


def test_no_document_is_no_octets() -> None:
    assert document(None) == b"" == document({})


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError):
        document({"value": object()})
