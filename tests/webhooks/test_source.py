"""The consumer of a pushed subscription's queue, turned up and down. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gateway.amqp.operations import Settlement
from gateway.errors import BrokerUnavailable, NotFound
from gateway.upstreams import ConsumerState, Upstream
from gateway.webhooks.source import PAUSE_MAX, PAUSE_MIN, SETTLE_WITHIN, EndpointSource
from tests.webhooks.virtual import FakeBroker, FakeConsumer, FakeDelivery, now, run


class Tap:
    """A source of the queue ``q``, with ten messages in it."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.came: list[FakeDelivery] = []
        self.less = 0
        self.begun: list[tuple[float, int]] = []
        """When consumers were asked for, and with which prefetch."""
        self.prepared = 0
        self.error: Exception | None = None
        """Of consumers that are to begin."""
        self.prepare_error: Exception | None = None
        self.prepare_seconds = 0.0
        self.reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.reported.append(context))
        consume = self.broker.consume

        async def counted(queue: str, prefetch: int, *more: Any, **named: Any) -> FakeConsumer:
            assert named == {"holder": ("push", "s")}
            self.begun.append((now(), prefetch))
            if self.error is not None:
                raise self.error
            return await consume(queue, prefetch, *more, **named)

        self.broker.consume = counted  # type: ignore[method-assign]
        self.source = EndpointSource(
            "s", cast(Upstream, self.broker), "q", cast(Any, self.came.append), self._less, self._prepare
        )
        for number in range(10):
            self.broker.put("q", b"%d" % number)

    def _less(self) -> None:
        self.less += 1

    async def _prepare(self) -> None:
        self.prepared += 1
        await asyncio.sleep(self.prepare_seconds)
        if self.prepare_error is not None:
            raise self.prepare_error

    async def want(self, prefetch: int) -> None:
        """Have so many, and let that happen."""
        self.source.want(prefetch)
        await asyncio.sleep(0.1)

    async def settle(self, count: int, settlement: Settlement = Settlement.ACCEPT) -> None:
        """The first of those that are out have come to their end."""
        for delivery in [each for each in self.came if not each.settled and not each.lost][:count]:
            delivery.settle(settlement)
            self.source.settled()
        await asyncio.sleep(0.1)

    @property
    def prefetches(self) -> list[int]:
        return [prefetch for _, prefetch in self.begun]

    @property
    def consumers(self) -> int:
        """How many there are, those that take nothing more included."""
        return len(self.broker.consumers.get("q", ()))


def with_tap(test: Callable[[Tap], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Give the test a source of its own, and look that nothing of it failed behind its back."""

    async def main() -> None:
        tap = Tap()
        await test(tap)
        await tap.source.close()
        assert (tap.consumers, tap.reported) == (0, [])

    def wrapped() -> None:
        run(main())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@with_tap
async def test_so_many_are_out_as_are_wanted(tap: Tap) -> None:
    assert (tap.source.flowing, tap.source.reason, tap.source.wanted) == (False, "", 0)
    await tap.want(0)
    assert tap.begun == []
    await tap.want(3)
    assert (len(tap.came), tap.source.flowing, tap.source.reason) == (3, True, "")
    await tap.want(3)
    await tap.settle(2)
    assert (len(tap.came), tap.prefetches, tap.prepared, tap.less) == (5, [3], 1, 0)


@with_tap
async def test_what_is_out_of_an_old_consumer_counts_against_what_is_wanted(tap: Tap) -> None:
    await tap.want(4)
    await tap.want(3)
    assert (tap.prefetches, tap.less, tap.source.flowing) == ([4], 1, False)
    assert tap.consumers == 1
    await tap.settle(1)
    assert tap.prefetches == [4], "three are out, and as many are wanted"
    await tap.settle(1)
    assert (tap.prefetches, tap.consumers, tap.source.flowing) == ([4, 3], 2, True)
    await tap.settle(2)
    assert tap.consumers == 1, "the old one is closed when nothing of it is out"
    await tap.want(8)
    assert (tap.prefetches, tap.less) == ([4, 3, 8], 2)
    await asyncio.sleep(2 * SETTLE_WITHIN)
    assert tap.reported == []


@with_tap
async def test_one_with_nothing_out_is_closed_at_once(tap: Tap) -> None:
    tap.broker.queues["q"].clear()
    await tap.want(3)
    await tap.want(0)
    assert (tap.consumers, tap.source.flowing, tap.less) == (0, False, 1)
    tap.broker.put("q", b"x")
    await tap.settle(0)
    await tap.want(1)
    assert [each.message.body for each in tap.came] == [b"x"]


@with_tap
async def test_what_is_out_of_an_old_consumer_for_too_long_goes_back(tap: Tap) -> None:
    await tap.want(2)
    await tap.want(0)
    await asyncio.sleep(SETTLE_WITHIN - 1)
    assert [each.lost for each in tap.came] == [False, False]
    await asyncio.sleep(2)
    assert [each.lost for each in tap.came] == [True, True]
    assert len(tap.broker.queues["q"]) == 10


@with_tap
async def test_less_that_is_wanted_while_it_is_prepared_counts(tap: Tap) -> None:
    tap.prepare_seconds = 1.0
    await tap.want(5)
    await tap.want(2)
    await asyncio.sleep(5)
    assert (tap.prefetches, tap.prepared, len(tap.came)) == ([2], 2, 2)


@with_tap
async def test_a_consumer_that_does_not_run_says_why(tap: Tap) -> None:
    await tap.want(1)
    (consumer,) = tap.broker.consumers["q"]
    consumer.state, consumer.reason = ConsumerState.STARTING, "the link is down"
    assert (tap.source.flowing, tap.source.reason) == (False, "the link is down")
    consumer.state = ConsumerState.RUNNING
    assert (tap.source.flowing, tap.source.reason) == (True, "")


# ------------------------------------------------------------------------------------------------------- trouble


@with_tap
async def test_one_that_cannot_begin_is_tried_again_less_and_less_often(tap: Tap) -> None:
    tap.error = BrokerUnavailable("it is away")
    await tap.want(1)
    assert (tap.source.reason, tap.source.flowing) == ("it is away", False)
    await asyncio.sleep(600)
    waits = [after - before for (before, _), (after, _) in zip(tap.begun, tap.begun[1:], strict=False)]
    assert PAUSE_MIN / 2 <= waits[0] <= PAUSE_MIN
    assert PAUSE_MAX / 2 <= waits[-1] <= PAUSE_MAX
    tap.error = None
    await asyncio.sleep(PAUSE_MAX)
    assert (tap.source.flowing, tap.source.reason) == (True, "")
    await tap.settle(1)
    tap.broker.queues["q"].clear()
    await tap.settle(1)
    tap.error = BrokerUnavailable("it is away again")
    before = len(tap.begun)
    await tap.want(5)
    await asyncio.sleep(PAUSE_MIN)
    assert len(tap.begun) >= before + 2, "it begins with a short pause"


@with_tap
async def test_what_is_wanted_in_the_middle_of_a_pause_is_tried_at_once(tap: Tap) -> None:
    tap.error = BrokerUnavailable("it is away")
    await tap.want(1)
    await asyncio.sleep(600)
    tap.error = None
    await tap.want(2)
    assert (tap.source.flowing, len(tap.came)) == (True, 2)


@pytest.mark.parametrize(
    ("error", "prepare_error", "reason"),
    [
        (
            NotFound(404, "no queue"),
            None,
            "queue 'q': not found on broker 'b'. Declare it: PUT /v1/brokers/b/queues/q (404 no queue)",
        ),
        (None, NotFound(404, "no exchange"), "404 no exchange"),
        (BrokerUnavailable("away"), None, "away"),
        (ValueError(), None, "ValueError()"),
    ],
)
def test_the_trouble_says_what_to_do(
    caplog: pytest.LogCaptureFixture, error: Exception | None, prepare_error: Exception | None, reason: str
) -> None:
    @with_tap
    async def main(tap: Tap) -> None:
        def logged() -> list[bool]:
            """Of each line, whether it has the traceback: only a fault of the gateway needs it."""
            return [bool(each.exc_info) for each in caplog.records if each.getMessage() == "push.no_consumer"]

        tap.error, tap.prepare_error = error, prepare_error
        await tap.want(1)
        assert tap.source.reason == reason
        await asyncio.sleep(60)
        assert logged() == [isinstance(error, ValueError)], "the log has it once"
        tap.error = tap.prepare_error = None
        await asyncio.sleep(PAUSE_MAX)
        assert tap.source.reason == ""
        await tap.settle(1)
        tap.error = BrokerUnavailable("away again")
        await tap.want(5)
        assert logged() == [isinstance(error, ValueError), False]

    main()


# ----------------------------------------------------------------------------------------------------------- the end


@with_tap
async def test_after_a_stop_nothing_comes_and_what_is_out_may_be_settled(tap: Tap) -> None:
    await tap.want(3)
    await tap.source.stop()
    assert tap.source.wanted == 0
    await tap.settle(2)
    assert (len(tap.came), tap.consumers) == (3, 1)
    assert tap.broker.accepted == [b"0", b"1"]
    await tap.source.close()
    assert [each.lost for each in tap.came] == [False, False, True]
    assert (len(tap.broker.queues["q"]), tap.consumers) == (8, 0)
    await tap.source.close()


@with_tap
async def test_at_the_end_all_that_is_out_goes_back(tap: Tap) -> None:
    """Of consumers that have ended, too."""
    await tap.want(2)
    await tap.want(5)
    assert len(tap.came) == 7
    await tap.source.close()
    assert [each.lost for each in tap.came] == [True] * 7
    await asyncio.sleep(2 * SETTLE_WITHIN)
    assert len(tap.begun) == 2


@pytest.mark.parametrize("how", ["stop", "close"])
def test_after_the_end_nothing_is_tried_again(how: str) -> None:
    @with_tap
    async def main(tap: Tap) -> None:
        tap.error = BrokerUnavailable("it is away")
        await tap.want(1)
        await getattr(tap.source, how)()
        tap.error, before = None, len(tap.begun)
        await asyncio.sleep(1_000)
        assert len(tap.begun) == before

    main()


@with_tap
async def test_an_end_while_it_begins_waits_until_that_is_over(tap: Tap) -> None:
    ended: list[None] = []
    try_once = tap._prepare

    async def prepare() -> None:
        try:
            await try_once()
        finally:
            await asyncio.sleep(0)
            ended.append(None)

    tap.source._prepare = prepare
    tap.prepare_seconds = 10.0
    await tap.want(1)
    await tap.source.stop()
    assert ended == [None]
