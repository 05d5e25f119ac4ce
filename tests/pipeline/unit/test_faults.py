"""What Spark's failures mean."""

from __future__ import annotations

import errno

import pytest

from gateway import errors
from gateway.exits import EXIT_OF_ERROR, EXIT_STATUS, FAILED, exit_status
from gateway.pipeline.faults import MAX_TEXT, fault_of

WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "gateway/pipeline/source/reader.py", line 12, in read
gateway.errors.SourceGone: shard 0: rows 12 to 90 are gone
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:652)
"""


def test_our_own_errors_come_back_out_of_a_task() -> None:
    fault = fault_of(RuntimeError(WORKER))
    assert type(fault) is errors.SourceGone
    assert str(fault) == "shard 0: rows 12 to 90 are gone"


def test_one_of_ours_that_is_wrapped_is_itself() -> None:
    inner = errors.CursorOwned("owned by a")
    outer = ValueError("x")
    outer.__cause__ = inner
    assert fault_of(outer) is inner
    assert fault_of(inner) is inner


def test_one_that_was_dealt_with_before_is_not_meant() -> None:
    error = ValueError("something else")
    error.__context__ = errors.CursorOwned("owned by a")
    assert type(fault_of(error)) is errors.CursorOwned
    error.__suppress_context__ = True  # as ``raise ... from None`` does
    assert type(fault_of(error)) is errors.PipelineFault


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("java.io.IOException: No space left on device", errors.DiskFull),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", errors.JavaMissing),
        ("file:/a/part-0.parquet is not a Parquet file. Expected magic number at tail", errors.ArchiveDamaged),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file", errors.ArchiveDamaged),
        ("java.lang.OutOfMemoryError: Java heap space", errors.PipelineFault),
        ("something nobody knows", errors.PipelineFault),
    ],
)
def test_words_of_the_jvm(said: str, kind: type[errors.GatewayError]) -> None:
    fault = fault_of(RuntimeError(f"first line\n{said}\nlast line"))
    assert type(fault) is kind
    assert said in str(fault)


def test_a_full_disk_of_our_own() -> None:
    fault = fault_of(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    assert type(fault) is errors.DiskFull
    assert str(fault) == "/data/x: No space left on device"
    assert type(fault_of(OSError(errno.EACCES, "Permission denied", "/data/x"))) is errors.PipelineFault


def test_pages_of_words_are_cut() -> None:
    assert len(str(fault_of(RuntimeError("x" * 100_000)))) == MAX_TEXT


def test_a_chain_that_goes_round_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "one" in str(fault_of(one))


def test_every_fault_has_an_exit_status_that_is_explained() -> None:
    for kind in errors.PipelineFault.__subclasses__():
        if kind.__module__ == errors.__name__:
            assert kind in EXIT_OF_ERROR
            assert exit_status(kind) in EXIT_STATUS
            assert exit_status(kind) != FAILED
