"""What a handler sees of its request."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from gateway.api.http.call import decode_json, media_type
from gateway.api.http.problems import ApiProblem


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: Annotated[int, Meta(ge=1)] = 1


class Outer(msgspec.Struct):
    items: list[Inner] = []
    by_name: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("octets", "code", "pointer"),
    [
        (b'{"items": [{}, {"number": 0}]}', "invalid_request", "/items/1/number"),
        (b'{"items": [{"x": 1}]}', "invalid_request", "/items/0/x"),
        (b'{"by_name": {"a/b": {"number": "1"}}}', "invalid_request", "/by_name/a~1b/number"),
        (b'{"by_name": {"a": 1}}', "invalid_request", "/by_name/a"),
        (b"5", "invalid_request", ""),
        (b"{", "malformed_json", None),
        (b"\xff", "malformed_json", None),
        (b"[" * 100_000, "malformed_json", None),
    ],
    ids=lambda item: repr(item)[:30],
)
def test_what_is_wrong_is_pointed_at(octets: bytes, code: str, pointer: str | None) -> None:
    kind: Any = Outer if octets[:1] != b"[" else Any
    with pytest.raises(ApiProblem) as caught:
        decode_json(octets, kind)
    assert caught.value.problem_code == code
    assert [each.pointer for each in caught.value.errors] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize(
    ("value", "expected"), [(b"Application/JSON; charset=utf-8", "application/json"), (b"", ""), (None, "")]
)
def test_media_type(value: bytes | None, expected: str) -> None:
    assert media_type({} if value is None else {b"content-type": value}) == expected
