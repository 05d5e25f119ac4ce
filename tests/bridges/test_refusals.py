"""Whose fault a refusal is."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.bridges.refusals import Fault, refusal_of
from gateway.errors import GatewayError, remote_error


def every_error() -> list[type[GatewayError]]:
    found = [GatewayError]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.EncodeError("x"), Fault.MESSAGE),
        (errors.Unsupported("x"), Fault.MESSAGE),
        (errors.LimitExceeded("x", "message_max"), Fault.MESSAGE),
        (errors.FrameSyntaxError("x"), Fault.MESSAGE),
        (remote_error(406, "PRECONDITION_FAILED - invalid expiration"), Fault.MESSAGE),
        (remote_error(404, "NOT_FOUND - no exchange"), Fault.TARGET),
        (remote_error(403, "ACCESS_REFUSED - write access to exchange 'x' refused"), Fault.TARGET),
        (remote_error(403, "ACCESS_REFUSED - write access to topic 'x' refused"), Fault.SUSPECT),
        (errors.BrokerUnavailable("x"), Fault.TARGET),
        (errors.AuthenticationFailed("x"), Fault.TARGET),
        (errors.Unroutable("x"), Fault.SUSPECT),
        (errors.PublishRefused("x"), Fault.SUSPECT),
        (errors.OutcomeUnknown("x"), Fault.SUSPECT),
    ],
)
def test_whose_fault_it_is(error: GatewayError, fault: Fault) -> None:
    assert refusal_of(error).fault is fault


@pytest.mark.parametrize("kind", every_error())
def test_each_error_has_one(kind: type[GatewayError]) -> None:
    error = kind.__new__(kind)
    if isinstance(error, errors.RemoteError):
        error.reply_code, error.reply_text = 500, ""
    assert refusal_of(error).tries >= 1
