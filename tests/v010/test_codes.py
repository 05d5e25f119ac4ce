"""Error codes and reply codes."""

from __future__ import annotations

from gateway.v010.codes import DETACH_REPLY_CODES, ERROR_CODES, error_code, reply
from gateway.v010.controls import DETACH_CODES


def test_codes_that_both_have_stay() -> None:
    for code in (403, 404, 405, 406, 503, 506, 530, 540, 541):
        assert error_code(code) == code
        assert reply(code, None)[0] == code


def test_the_text_begins_with_the_name() -> None:
    assert reply(404, "no queue") == (404, "not-found: no queue")
    assert reply(408, "") == (404, "resource-deleted")
    assert reply(999, "?") == (541, "error 999: ?")


def test_every_reply_code_has_an_error_code() -> None:
    for code in (311, 313, 320, 402, 501, 502, 504, 505, 999):
        assert error_code(code) in ERROR_CODES


def test_every_detach_code_has_a_reply_code() -> None:
    assert set(DETACH_REPLY_CODES) == set(DETACH_CODES)
