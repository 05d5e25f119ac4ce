"""Names as octets, documents as JSON."""

from __future__ import annotations

import pytest

from gateway.ledger.db.encoding import document, header_texts, octets, parse, text


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


def test_headers_become_text_that_can_be_searched() -> None:
    class Typed:
        value = 3

    headers = {
        "a": "x", "b": True, "c": 1.5, "d": Typed(), "e": b"octets", "f": {"x": 1}, "g": None, "h": "\udcff",
        "i": "é" * 300,
    }  # fmt: skip
    assert header_texts(headers, [*"abcdefgh", "none"]) == {"a": "x", "b": "true", "c": "1.5", "d": "3", "h": "\\udcff"}
    assert header_texts(headers, ["i"]) == {"i": "é" * 200}
