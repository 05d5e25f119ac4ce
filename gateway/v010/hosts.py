"""The lists of hosts of 0-10: ``amqp-host-array``, an array whose elements are strings (str16)."""

from __future__ import annotations

from typing import Final, get_args

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.codec import READ_ERRORS
from gateway.v010.fields import FieldType, Str16Array

_HOSTS: Final[FieldType] = get_args(Str16Array)[1]
_SIZE: Final = 4
"""Octets of the array's own length, which a field that holds one whole leaves out."""


def read_hosts(array: bytes | None, limits: Limits) -> tuple[str, ...]:
    """The hosts of a field, none where it is absent. Raises :class:`~gateway.errors.FrameSyntaxError`."""
    if not array:
        return ()
    try:
        hosts: tuple[str, ...] = _HOSTS.read(len(array).to_bytes(_SIZE, "big") + array, 0, limits)[0]
    except READ_ERRORS as error:
        raise FrameSyntaxError(f"a list of hosts is cut short: {error}") from None
    return hosts


def write_hosts(hosts: tuple[str, ...]) -> bytes | None:
    """A field of these hosts, absent where there are none."""
    octets: bytes = _HOSTS.write(hosts)
    return octets[_SIZE:] if hosts else None
