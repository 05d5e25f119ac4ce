"""What is held of the commands that were sent."""

from __future__ import annotations

import pytest

from gateway.errors import FrameSyntaxError
from gateway.v010 import replay
from gateway.v010.frames import read_frame
from gateway.v010.replay import Replay, Sent


def filled(count: int, octets_max: int = 1_000) -> Replay:
    kept = Replay(octets_max)
    for number in range(count):
        kept.add(number, Sent(b"%d" % number))
    return kept


def runs(kept: Replay, expected: list[tuple[int, int]], following: int) -> list[tuple[int, list[bytes]]]:
    return [(point, [sent.segment for sent in sents]) for point, sents in kept.runs(expected, following)]


def test_what_is_complete_is_forgotten() -> None:
    kept = filled(6)
    kept.forget([(0, 1), (4, 4), (90, 1 << 40)], 5)
    assert (len(kept), kept.octets) == (3, 3)
    assert runs(kept, [(5, 5)], 6) == [(5, [b"5"])]


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([(6, 6)], [(6, [])]),
        ([(4, 4)], [(4, [b"4", b"5"])]),
        ([(0, 0)], [(0, [b"0", b"1", b"2", b"3", b"4", b"5"])]),
        ([(1, 2), (4, 4), (6, 6)], [(1, [b"1", b"2"]), (4, [b"4"]), (6, [])]),
    ],
)
def test_what_is_missing_is_sent_again(expected: list[tuple[int, int]], found: list[tuple[int, list[bytes]]]) -> None:
    assert runs(filled(6), expected, 6) == found


@pytest.mark.parametrize("expected", [[(7, 7)], [(-5, -5)], [(0, 6), (6, 6)], [(0, 1 << 31), (6, 6)], [(9, 9), (6, 6)]])
def test_what_cannot_be_missing(expected: list[tuple[int, int]]) -> None:
    with pytest.raises(FrameSyntaxError, match="where it cannot be missing"):
        runs(filled(6), expected, 6)


def test_what_is_complete_cannot_be_missing() -> None:
    kept = filled(6)
    kept.forget([(3, 3)], 5)
    with pytest.raises(FrameSyntaxError, match=r"session\.expected 3, which is complete"):
        runs(kept, [(2, 2)], 6)


def test_how_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Replay(10)
    kept.add(0, Sent(b"x" * 50))
    assert (kept.full, kept.half_full, kept.over) == (False, True, False), "one is held however large it is"
    kept.add(1, Sent(b"x"))
    assert (kept.full, kept.over) == (True, True)
    kept = filled(3, 4)
    assert (kept.full, kept.half_full, kept.over) == (False, True, False)
    monkeypatch.setattr(replay, "COMMANDS_MAX", 3)
    assert (kept.full, kept.half_full, kept.over) == (True, True, False)
    monkeypatch.setattr(replay, "COMMANDS_MAX", 1)
    assert kept.over


@pytest.mark.parametrize(
    ("sent", "kinds"),
    [
        (Sent(b"c"), [(15, 1)]),
        (Sent(b"c", b""), [(11, 1), (7, 2)]),
        (Sent(b"c", b"h", b"b"), [(11, 1), (3, 2), (7, 3)]),
    ],
)
def test_the_frames_of_a_command(sent: Sent, kinds: list[tuple[int, int]]) -> None:
    found = []
    for frame in sent.frames(7, 4_096):
        read = read_frame(frame, 0, 4_096)
        assert read is not None
        (flags, kind, track, channel, _), _ = read
        assert (track, channel) == (1, 7)
        found.append((flags, kind))
    assert found == kinds
    assert sent.octets == len(sent.segment) + len(sent.header or b"") + len(sent.body)
