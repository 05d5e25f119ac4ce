"""The emitters: fixed-size neighbours share a struct, bits share octets."""

from __future__ import annotations

import struct

from gateway.wire.emit import Emitter, Reader, Writer


def test_neighbours_share_one_struct() -> None:
    out = Reader()
    out.fixed("H", "a")
    out.fixed("I", "b")
    out.fixed("B", "c")
    out.line("return a, b, c, at")
    read = out.function("read(data, at)", [], {})
    assert read(b"\xff\x00\x01\x00\x00\x00\x02\x03", 1) == (1, 2, 3, 8)
    assert len(out.names) == 1


def test_a_single_octet_is_an_index() -> None:
    out = Reader()
    out.fixed("B", "a")
    out.line("return a, at")
    assert out.function("read(data, at)", [], {})(b"\x00\x07", 1) == (7, 2)
    assert not out.names


def test_nine_bits_take_two_octets() -> None:
    reader, writer = Reader(), Writer()
    for index in range(9):
        reader.bit(f"b{index}")
        writer.bit(f"bits[{index}]")
    reader.line(f"return ({', '.join(f'b{index}' for index in range(9))}), at")
    writer.line(f"return {writer.result()}")
    read, write = reader.function("read(data, at)", [], {}), writer.function("write(bits)", [], {})
    bits = (True, False, True, True, False, False, False, True, True)
    assert write(bits) == b"\x8d\x01"
    assert read(write(bits), 0) == (bits, 2)


def test_a_run_of_bits_ends_with_another_field() -> None:
    out = Writer()
    out.bit("True")
    out.fixed("B", "2")
    out.bit("True")
    out.octets("b'x'")
    out.bit("True")
    out.line(f"return {out.result()}")
    assert out.function("write()", [], {})() == b"\x01\x02\x01x\x01"


def test_what_is_read_inside_a_block_stays_there() -> None:
    out = Reader()
    out.fixed("B", "flag")
    out.line("value = None")
    with out.block("if flag:"):
        out.fixed("H", "value")
    with out.block("if not flag:"):
        pass
    out.line("return value, at")
    read = out.function("read(data, at)", [], {})
    assert read(b"\x01\x00\x05", 0) == (5, 3)
    assert read(b"\x00\x00\x05", 0) == (None, 1)


def test_nothing_written_is_no_octets() -> None:
    out = Writer()
    out.line(f"return {out.result()}")
    assert out.function("write()", [], {})() == b""


def test_a_name_is_given_once_for_one_object() -> None:
    out, layout = Emitter(), struct.Struct(">H")
    assert out.name("layout", layout) == out.name("layout", layout)
    assert out.name("other", layout) != out.name("layout", layout)
    assert out.function("nothing()", [], {})() is None
