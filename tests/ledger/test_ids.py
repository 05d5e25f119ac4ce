"""UUIDv7."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest

from gateway.ledger.db.ids import DAY_MS, MessageIds, first_id, id_text, parse_id, time_of


def test_an_id_is_a_uuid_of_version_7_with_its_time_in_front() -> None:
    made = MessageIds(lambda: 1_645_557_742.0, lambda n: b"\xff" * n)()
    assert (UUID(bytes=made).version, UUID(bytes=made).variant) == (7, RFC_4122)
    assert made[:6].hex() == "017f22e279b0"  # the example of RFC 9562, appendix A.6


def test_ids_increase_within_a_millisecond_and_beyond_its_counter() -> None:
    ids = MessageIds(lambda: 1_000.0)
    made = [ids() for _ in range(10_000)]
    assert made == sorted(set(made))
    assert int.from_bytes(made[0][:6], "big") == 1_000_000
    assert int.from_bytes(made[-1][:6], "big") == 1_000_002


def test_ids_increase_when_the_clock_steps_back() -> None:
    times = iter([2_000.0, 1_999.0, 1_000.0])
    ids = MessageIds(lambda: next(times))
    made = [ids() for _ in range(3)]
    assert made == sorted(set(made))


def test_text_and_back() -> None:
    made = MessageIds()()
    assert parse_id(id_text(made)) == made


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "01a21a0b-1511-7000-839f-17  27d9e8ea",  # bytes.fromhex would skip the spaces
        "01a21a0b-1511-7000-839f-17-7d9e8ea5-",
        "01a21a0b-1511-7000-839f-1727d9e8ea5g",
        "01a21a0b-1511-7000-839f-1727d9e8ea5fa",
        "",
    ],
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=r"UUID|hexadecimal|base 16"):
        parse_id(text)


def test_a_uuid_of_version_7_has_its_time_in_it_and_no_other_one() -> None:
    assert time_of(MessageIds(lambda: 1_790_000_000.123)()) == 1_790_000_000_123
    for foreign in ("4f6d3c5e-7b1a-4c2d-9e8f-0a1b2c3d4e5f", "01a21a0b-1511-7000-c39f-1727d9e8ea5f"):
        assert time_of(parse_id(foreign)) is None


def test_the_first_id_of_a_day_is_below_all_of_that_day_and_above_those_before() -> None:
    midnight = 20_000 * DAY_MS
    clock = [midnight / 1000]
    assert MessageIds(lambda: clock[0], bytes)() >= first_id(midnight)
    clock[0] -= 0.001
    assert MessageIds(lambda: clock[0], lambda n: b"\xff" * n)() < first_id(midnight)


def test_an_id_has_its_millisecond_and_its_number_within_it() -> None:
    """The first of a millisecond is number 0; when they run out the next millisecond is borrowed."""
    times = [1.0]
    ids = MessageIds(lambda: times[0], bytes)

    def made() -> tuple[int, int, int]:
        one = ids()
        assert one[6] >> 4 == 7
        assert one[8:] == bytes((0x80, *bytes(7)))
        return int.from_bytes(one[:6]), int.from_bytes(one[6:8]) & 0xFFF, time_of(one) or 0

    assert [made()[:2] for _ in range(3)] == [(1_000, 0), (1_000, 1), (1_000, 2)]
    times[0] = 1.0015
    assert made() == (1_001, 0, 1_001)
    for number in range(1, 4_096):
        assert made()[:2] == (1_001, number)
    assert [made()[:2] for _ in range(2)] == [(1_002, 0), (1_002, 1)]
    times[0] = 1.0025
    assert made()[:2] == (1_002, 2), "its clock has caught up"


def test_a_uuid_is_taken_in_any_form() -> None:
    made = MessageIds()()
    text = id_text(made)
    for given in (text.upper(), text.replace("-", ""), f"{{{text}}}", f"urn:uuid:{text}"):
        assert parse_id(given) == made


@pytest.mark.parametrize(("version", "variant"), [(0x70, 0xC0), (0x40, 0x80), (0x60, 0x80), (0x70, 0x40)])
def test_other_uuids_have_no_time(version: int, variant: int) -> None:
    one = bytes(5) + bytes((9, version, 0, variant)) + bytes(7)
    assert time_of(one) is None
    assert time_of(bytes(5) + bytes((9, 0x7F, 0xFF, 0xBF)) + bytes(7)) == 9
