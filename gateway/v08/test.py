"""Class test (120) of 0-8: either side asks the other to calculate with values, and sees whether both read the same.

No broker that we know has it: ours answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import FieldTable, Long, LongLong, LongStr, Octet, Short, ShortStr


@method(120, 10)
class TestInteger(Method):
    """Either side: four numbers, and what to do with them."""

    integer_1: Octet
    integer_2: Short
    integer_3: Long
    integer_4: LongLong
    operation: Octet
    """Add, min or max; the definition gives them no numbers."""


@method(120, 11, answers=(TestInteger,))
class TestIntegerOk(Method):
    result: LongLong


@method(120, 20)
class TestString(Method):
    """Either side: two strings, to be put together, or of which the shorter or the longer is asked for."""

    string_1: ShortStr
    string_2: LongStr
    operation: Octet


@method(120, 21, answers=(TestString,))
class TestStringOk(Method):
    result: LongStr


@method(120, 30)
class TestTable(Method):
    """Either side: a table whose numbers and whose strings go through the same."""

    table: FieldTable
    integer_op: Octet
    string_op: Octet


@method(120, 31, answers=(TestTable,))
class TestTableOk(Method):
    integer_result: LongLong
    string_result: LongStr


@method(120, 40, content=True)
class TestContent(Method):
    """Either side: content, to come back as it went."""


@method(120, 41, answers=(TestContent,), content=True)
class TestContentOk(Method):
    """The same content."""

    content_checksum: Long
    """The sum of its octets, modulo 2 to the 32nd."""


METHODS: Final[tuple[type[Method], ...]] = (
    TestInteger, TestIntegerOk, TestString, TestStringOk, TestTable, TestTableOk, TestContent, TestContentOk,
)  # fmt: skip
"""The class, in the order of its numbers."""
