"""Run a coroutine up to its first wait.

Nearly always a body is there when the handler reads it, and so is the word that a caller has hung up, if it has. A
timer or a task for the rare wait would cost more than all the rest; so the coroutine is begun, and only one that has to
wait gets them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")


def begin(awaitable: Awaitable[T]) -> tuple[T | None, Awaitable[T] | None]:
    """Its result, if it has one without waiting; else what is to be awaited for it. Raises what it raises."""
    begun = cast("Coroutine[Any, Any, T]", awaitable)
    try:
        waits_for = begun.send(None)
    except StopIteration as end:
        return end.value, None
    return None, _go_on(begun, waits_for)


def ends_at_once(awaitable: Awaitable[Any]) -> bool:
    """Whether it ends without waiting; one that would wait is closed. Raises what it raises."""
    begun = cast("Coroutine[Any, Any, Any]", awaitable)
    try:
        begun.send(None)
    except StopIteration:
        return True
    begun.close()
    return False


@coroutine
def _go_on(begun: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine, which waits."""
    while True:
        try:
            got = yield waits_for
        except GeneratorExit:
            begun.close()
            raise
        except BaseException as error:
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waits_for = begun.send(got) if thrown is None else begun.throw(thrown)
        except StopIteration as end:
            return cast(T, end.value)
