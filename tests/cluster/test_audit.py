"""What the audit finds in lines of the database."""

from __future__ import annotations

from tests.cluster.audit import Line, Write, judge

B, C = ("bridge", "b"), ("bridge", "c")
ONE, TWO = (1, 5), (2, 9)


def line(at: float, what: str, work: tuple[str, str] = B, owner: tuple[int, int] = ONE, sequence: int = 1) -> Line:
    return Line(at, what, work if what != "fenced" else ("", ""), owner, sequence)


def test_one_after_the_other_is_no_overlap() -> None:
    found = judge([line(1, "begins"), line(2, "ends", sequence=8), line(3, "begins", owner=TWO)], [])
    assert (found.overlaps, found.moves) == ([], 1)
    assert found.owner_at(B, 1.5) == ONE
    assert found.owner_at(B, 2.5) is None
    assert found.taken_after(B, 1.5) == 1.5
    assert found.taken_after(B, 3.5) is None


def test_a_fence_ends_everything_of_its_shard_and_nothing_else() -> None:
    lines = [line(1, "begins"), line(1, "begins", C, TWO), line(2, "fenced"), line(3, "begins", owner=TWO)]
    found = judge(lines, [])
    assert found.overlaps == []
    assert found.owner_at(C, 9) == TWO
    assert found.fenced == 1


def test_two_at_a_time_are_found() -> None:
    assert len(judge([line(1, "begins"), line(2, "begins", owner=TWO)], []).overlaps) == 1
    late = [line(1, "begins"), line(2, "begins", owner=TWO), line(3, "fenced")]
    assert len(judge(late, []).overlaps) == 1
    taken = [line(1, "begins"), line(2, "fenced", owner=(1, 4)), line(3, "begins", owner=TWO)]
    assert len(judge(taken, []).overlaps) == 1, "another fence of the same shard ends nothing"


def test_the_dead_row_that_another_takes_over_has_ended_before() -> None:
    lines = [line(1, "begins"), line(2, "fenced"), line(3, "ends"), line(3, "begins", owner=TWO)]
    assert judge(lines, []).overlaps == []


def test_writes_within_a_term_are_the_owners() -> None:
    lines = [line(1, "begins", sequence=4), line(2, "ends", sequence=9), line(5, "begins", sequence=20)]
    writes = [Write(B, 1, 4), Write(B, 1, 8), Write(B, 1, 20), Write(B, 1, 99)]
    assert judge(lines, writes).strays == []


def test_writes_outside_of_every_term_are_found() -> None:
    lines = [line(1, "begins", sequence=4), line(2, "fenced", sequence=9)]
    for stray in (Write(B, 1, 3), Write(B, 1, 9), Write(B, 2, 5), Write(C, 1, 5)):
        assert len(judge(lines, [stray]).strays) == 1, stray
