"""Metrics whose number of series is bounded, for any names.

A label whose values are the names of things (brokers, bridges, endpoints) shows the first so many of them by name, and
all others together under :data:`OTHER`: counters and histograms add up there; a gauge is the least, the most or the
sum of what it stands for, by its meaning. So one of ten thousand bridges that is down is seen, without ten thousand
series. A name is forgotten when the last of its series is removed, and another takes its place.

And there is an end to all of it: a :class:`SeriesBudget` is shared by the metrics of a gateway, and what is beyond it
counts nowhere, which is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

OTHER: Final = "other"
"""The name that stands for those that have no series of their own."""
SERIES_MAX: Final = 5_000
"""Most series of a gateway."""

M = TypeVar("M", bound=MetricWrapperBase)
Together = Callable[[Iterable[float]], float]
"""What a gauge is of many: ``min``, ``max`` or ``sum``."""


class SeriesBudget:
    """How many series there may be, and which names have some of their own."""

    def __init__(self, series: int, names: Mapping[str, int]) -> None:
        """``names``: label -> how many of its values are shown; one that is not there shows all."""
        self.series = 0
        """How many there are."""
        self.refused = 0
        """How many were not made."""
        self._most = series
        self._names = dict(names)
        self._shown: dict[str, dict[str, int]] = {label: {} for label in names}

    def take(self, series: int) -> bool:
        """Whether there is room for so many more; then they are counted."""
        if self.series + series > self._most:
            self.refused += series
            return False
        self.series += series
        return True

    def give(self, series: int) -> None:
        """So many are gone."""
        self.series -= series

    def shows(self, label: str, name: str) -> bool:
        """Whether a name has series of its own."""
        most = self._names.get(label)
        if most is None or name == OTHER:
            return True
        shown = self._shown[label]
        return name in shown or len(shown) < most

    def enter(self, label: str, name: str) -> None:
        """A series with that name was made."""
        if label in self._shown and name != OTHER:
            self._shown[label][name] = self._shown[label].get(name, 0) + 1

    def leave(self, label: str, name: str) -> None:
        """A series with that name is gone."""
        if label in self._shown and name != OTHER:
            left = self._shown[label][name] - 1
            if left:
                self._shown[label][name] = left
            else:
                del self._shown[label][name]


class Hidden(Gauge):
    """A gauge without a series. Its values show only together with others."""

    def __init__(self, name: str) -> None:
        super().__init__(name, name, registry=None)
        self.read: Callable[[], float] = float

    def set(self, value: float) -> None:
        """Be this."""
        now = float(value)
        self.read = lambda: now

    def set_function(self, f: Callable[[], float]) -> None:
        """Be what this says."""
        self.read = f


class LoopCounter(Counter):
    """A counter to which only the event loop's thread adds, so that it needs no lock: every request has several."""

    _count: float

    def _metric_init(self) -> None:
        self._count = 0.0

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add an amount, 0 or more. It keeps no exemplars."""
        self._count += amount

    def _child_samples(self) -> Iterable[Sample]:
        return (Sample("_total", {}, self._count, None, None),)


class LoopHistogram(Histogram):
    """A histogram to which only the event loop's thread adds, so that it needs no lock."""

    _counts: list[int]
    _total: float

    def _metric_init(self) -> None:
        self._counts = [0] * len(self._upper_bounds)
        self._total = 0.0

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an amount. It keeps no exemplars."""
        self._total += amount
        self._counts[bisect_left(self._upper_bounds, amount)] += 1

    def _child_samples(self) -> Iterable[Sample]:
        sums = [float(count) for count in accumulate(self._counts)]
        return (
            *(
                Sample("_bucket", {"le": floatToGoString(bound)}, count, None, None)  # type: ignore[no-untyped-call]
                for bound, count in zip(self._upper_bounds, sums, strict=True)
            ),
            Sample("_count", {}, sums[-1], None, None),
            Sample("_sum", {}, self._total, None, None),
        )


class Family(Generic[M]):
    """A metric with labels."""

    def __init__(
        self,
        make: Callable[..., M],
        name: str,
        text: str,
        labels: Sequence[str],
        budget: SeriesBudget,
        registry: CollectorRegistry,
        together: Together = sum,
        **options: Any,
    ) -> None:
        """``make``: ``Counter``, ``Gauge`` or ``Histogram``, which takes ``options``; ``together``: what a gauge is of
        those that are not shown."""
        self.metric = make(name, text, tuple(labels), registry=registry, **options)
        self.label_names = tuple(labels)
        self._nowhere: Callable[[], M] = lambda: make(name, text, registry=None, **options)
        self._name = name
        self._budget = budget
        self._together = together
        self._each = series_of(self.metric, options.get("buckets", ()))
        self._children: dict[tuple[str, ...], M] = {}
        self._hidden: dict[tuple[str, ...], dict[tuple[str, ...], Hidden]] = {}
        """Gauges without a series, by the series in which they are seen together."""
        self._seen_in: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Which that is."""
        self._sink: M | None = None

    def labels(self, *values: str) -> M:
        """The series of these values: made if need be, shared where the name is not shown, or nowhere where there are
        too many."""
        child = self._children.get(values)
        return child if child is not None else self._find(values)

    def remove(self, *values: str) -> None:
        """Forget a series. What it added to those of others stays there."""
        if self._children.pop(values, None) is not None:
            self.metric.remove(*values)
            self._budget.give(self._each)
            for label, value in zip(self.label_names, values, strict=True):
                self._budget.leave(label, value)
            return
        shown = self._seen_in.pop(values, None)
        if shown is not None:
            del self._hidden[shown][values]
            if not self._hidden[shown]:
                del self._hidden[shown]
                self.remove(*shown)

    def clear(self) -> None:
        """Forget all of them."""
        self._hidden.clear()
        self._seen_in.clear()
        for values in list(self._children):
            self.remove(*values)

    def _shown(self, values: tuple[str, ...]) -> tuple[str, ...]:
        shows = self._budget.shows
        return tuple(
            value if shows(label, value) else OTHER for label, value in zip(self.label_names, values, strict=True)
        )

    def _find(self, values: tuple[str, ...]) -> M:
        shown = self._seen_in.get(values)
        if shown is None:
            shown = self._shown(values)
            if shown == values:
                return self._make(values)
            if not isinstance(self.metric, Gauge):
                return self.labels(*shown)
            self._seen_in[values] = shown
            hidden = self._hidden.setdefault(shown, {})
            hidden[values] = Hidden(self._name)
            if len(hidden) == 1:
                gauge: Any = self._make(shown)
                gauge.set_function(lambda: self._of(shown))
        return self._hidden[shown][values]  # type: ignore[return-value]  # it is a gauge, as the metric is

    def _of(self, shown: tuple[str, ...]) -> float:
        return self._together([each.read() for each in list(self._hidden.get(shown, {}).values())] or [0.0])

    def _make(self, values: tuple[str, ...]) -> M:
        if not self._budget.take(self._each):
            if self._sink is None:
                self._sink = self._nowhere()
            return self._sink
        for label, value in zip(self.label_names, values, strict=True):
            self._budget.enter(label, value)
        child = self._children[values] = self.metric.labels(*values)
        return child


def series_of(metric: MetricWrapperBase, buckets: Sequence[float]) -> int:
    """How many series one set of labels has."""
    return len(buckets) + 3 if isinstance(metric, Histogram) else 1
