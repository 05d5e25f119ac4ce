"""The tree of errors."""

from collections.abc import Iterator

import pytest

from gateway import errors
from gateway.errors import GatewayError, remote_error


def tree(root: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_every_error_has_a_code_and_an_outcome_of_its_own() -> None:
    classes = [cls for cls in tree(GatewayError) if cls.__module__ == errors.__name__]
    assert len({cls.code for cls in classes}) == len(classes)
    assert {cls.outcome for cls in classes} == {"not_sent", "refused", "unknown"}


def test_the_drawing_names_every_error() -> None:
    for cls in tree(GatewayError):
        if cls.__module__ == errors.__name__:
            assert cls.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (404, errors.NotFound),
        (403, errors.AccessRefused),
        (405, errors.ResourceLocked),
        (406, errors.PreconditionFailed),
        (540, errors.MethodNotImplemented),
        (541, errors.RemoteError),
    ],
)
def test_reply_codes_have_their_error(code: int, cls: type[errors.RemoteError]) -> None:
    error = remote_error(code, "NOT_FOUND - no queue 'x'")
    assert type(error) is cls
    assert str(error) == f"{code} NOT_FOUND - no queue 'x'"
