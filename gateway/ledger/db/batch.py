"""Many rows in two parameters.

A group commit inserts thousands of rows with one statement: ``INSERT ... SELECT`` from one JSON array (numbers and
ASCII names) and one string of octets (everything else). A number of rows is no part of the statement, so it is
compiled once; and the driver is called once, where ``executemany`` would take and release the interpreter lock for
every row. A row in JSON holds its plain values, then where each of its columns of octets begins in the string, then
where the last one ends::

    rows    [["accepted", 1700000000000000, 1, 17], ["confirmed", 1700000000000000, 17, 33]]
    octets  <id of the first><id of the second>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from gateway.ledger.db.models import UInt64

PART: Final = 1 << 20
"""Bytes after which a batch of payloads is full. While the driver copies what a statement is given, it holds the
interpreter's lock, and the event loop waits."""
_encode = msgspec.json.Encoder().encode


class RowBatch:
    """Rows on their way to a statement built by :func:`select_rows` for the same columns in the same order."""

    __slots__ = ("_end", "_octets", "_rows")

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._octets: list[bytes] = []
        self._end = 1  # substr counts from 1

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether further rows belong into another statement."""
        return self._end > PART

    def add(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        """A row: the values of the columns of numbers and ASCII text, in order, then those of octets."""
        row = [*plain]
        end = self._end
        for part in octets:
            row.append(end)
            end += len(part)
        row.append(end)
        self._end = end
        self._octets += octets
        self._rows.append(_encode(row))  # octets, since the garbage collector does not look at them

    def parameters(self, **more: Any) -> dict[str, Any]:
        """The statement's parameters."""
        octets = b"".join(self._octets) or b"\0"  # of none at all SQLite's substr would make NULL
        return {"rows": f"[{b','.join(self._rows).decode()}]", "octets": octets, **more}


def select_rows(
    dialect: str, columns: Sequence[sa.Column[Any]], **more: sa.ColumnElement[Any]
) -> tuple[sa.Select[Any], sa.ColumnElement[int]]:
    """``SELECT`` of a batch as ``columns``, followed by ``more``; and the index of the row, from 0."""
    rows = sa.bindparam("rows", type_=sa.String)
    octets = sa.bindparam("octets", type_=sa.LargeBinary)
    index: sa.ColumnElement[int]
    if dialect == "sqlite":
        each = sa.func.json_each(rows).table_valued("key", "value", name="batch")
        index = each.c.key

        def item(position: int, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
            return sa.func.json_extract(each.c.value, f"$[{position}]", type_=column.type)
    else:
        each = (
            sa.func.jsonb_array_elements(sa.cast(rows, JSONB))
            .table_valued(sa.column("value", JSONB), with_ordinality="key", name="batch")
            .render_derived()
        )
        index = each.c.key - 1

        def item(position: int, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
            value = each.c.value.op("->>")(sa.literal_column(str(position)))
            return sa.cast(value, sa.Numeric(20, 0) if isinstance(column.type, UInt64) else column.type)

    number = sa.Column("n", sa.Integer)
    is_octets = [isinstance(column.type, sa.LargeBinary) for column in columns]
    plain, begin = 0, len(columns) - sum(is_octets)
    selected: list[sa.ColumnElement[Any]] = []
    for column, binary in zip(columns, is_octets, strict=True):
        if binary:
            length = item(begin + 1, number) - item(begin, number)
            selected.append(sa.func.substr(octets, item(begin, number), length, type_=column.type).label(column.name))
            begin += 1
        else:
            selected.append(item(plain, column).label(column.name))
            plain += 1
    selected += [expression.label(name) for name, expression in more.items()]
    # WHERE true: without it SQLite takes the ON of ON CONFLICT for that of a join.
    return sa.select(*selected).select_from(each).where(sa.true()), index
