"""What a job is: a name, options, and a function from a context to an outcome.

A job knows nothing of command lines, run records or where it runs. It is given a :class:`Context`, works, says how far
it is, and returns an :class:`Outcome`; what it cannot do it raises as a fault (:mod:`gateway.pipeline.faults`).
:mod:`gateway.pipeline.jobs.runs` wraps that into a run with a record in the ledger.

:data:`JOBS` is the table of all of them. A job's module is imported when the job is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from gateway.exits import DONE
from gateway.pipeline.reports import Section
from gateway.pipeline.service import Service
from gateway.pipeline.session import close_session, spark_session
from gateway.pipeline.settings import Pipeline
from gateway.runtime.clock import clock
from gateway.terminal import Estimate, percent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS: Final[Mapping[str, tuple[str, str]]] = {
    "archive": (
        "gateway.pipeline.jobs.archive:Archive",
        "Keep a log for good: append what is new in it to the archive.",
    ),
    "compact": (
        "gateway.pipeline.jobs.compact:Compact",
        "Make few large files of an archive's many small ones.",
    ),
    "retention": (
        "gateway.pipeline.jobs.retention:Retention",
        "Delete old days of an archive.",
    ),
    "rollup": (
        "gateway.pipeline.jobs.rollup:Rollup",
        "Count per hour and route what happened, and how long it took.",
    ),
    "reconcile": (
        "gateway.pipeline.jobs.reconcile:Reconcile",
        "Name every message that is lost, doubled, late or changed.",
    ),
    "validate": (
        "gateway.pipeline.jobs.validate:Validate",
        "Name every event that may not follow the one before it.",
    ),
    "replay": (
        "gateway.pipeline.jobs.replay:Replay",
        "Publish messages of the archive once more.",
    ),
    "transfer": (
        "gateway.pipeline.jobs.transfer:Transfer",
        "Move queues from one broker to another, and count both sides.",
    ),
}
"""Job -> where it is (``module:Class``), what it does."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a job; ``since_hours`` is ``--since-hours`` on a command line."""

    name: str
    help: str
    type: Literal["text", "whole", "number", "flag", "time", "choice", "file"] = "text"
    """``time``: RFC 3339, or how long ago (90s, 2h, 1d); the job gets an aware datetime in UTC. ``file``: the name of
    a file that is there."""
    default: Any = None
    choices: tuple[str, ...] = ()
    """Of ``choice``."""
    required: bool = False
    many: bool = False
    """Whether it may be given several times; the job gets a tuple."""
    metavar: str = ""
    least: float | None = None
    """Lowest number that it may be."""
    identity: bool = True
    """Whether another value makes it another run: not for what only says how fast or how loud."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job did."""

    rows: int = 0
    """Rows, messages or events that it worked through."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Its figures, as JSON holds them; they stay with the run's record (at most 64 KiB)."""
    reports: Sequence[Section] = ()
    """What people should see."""
    exit: int = DONE
    """Exit status: 7 (``DIFFERENT``) where a comparison found breaks, 6 (``PARTLY_DONE``) where something was left."""


class Reporter(Protocol):
    """Where a run says how far it is."""

    def show(self, found: Mapping[str, Any], line: str) -> None:
        """How it stands: as data, and as a line for people."""

    def close(self) -> None:
        """The last line stays."""


class Silent:
    """A reporter for nobody."""

    def show(self, found: Mapping[str, Any], line: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""


class JobRequest(NamedTuple):
    """What is asked of a job."""

    run_id: str
    """Names the run: one with an id that is done is not done again."""
    options: Mapping[str, Any] = MappingProxyType({})
    """By the names of the job's options; all of them are there."""
    job: str = ""
    """The job's name."""
    dry_run: bool = False
    """Only say what would be done: nothing is written, sent or acknowledged."""


class Context:
    """What a job works with."""

    def __init__(
        self,
        pipeline: Pipeline,
        request: JobRequest,
        *,
        master: str | None = None,
        reporter: Reporter | None = None,
        spark: SparkSession | None = None,
        service: Service | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.job = request.job
        self.run_id = request.run_id
        self.options = dict(request.options)
        self.dry_run = request.dry_run
        self.service = service or Service(pipeline)
        self._master = master
        self._reporter = reporter or Silent()
        self._spark = spark
        self._owns_spark = spark is None
        self._estimate = Estimate()
        self._heard: list[Callable[[Mapping[str, Any]], None]] = []
        self._keepers: list[Callable[[], None]] = []
        self.kept: dict[str, Any] = {}
        """What :meth:`keep` was given, by this attempt at the run or by an earlier one that did not come to its end."""

    @property
    def spark(self) -> SparkSession:
        """Spark, started on first use.

        Raises:
            JavaMissing, SparkMissing, ConfigurationError: as :func:`gateway.pipeline.session.spark_session` says.
        """
        if self._spark is None:
            self.say("starting Spark")
            self._spark = spark_session(
                self.pipeline,
                self._master,
                f"gateway {self.job}".strip(),
                delta=self.pipeline.settings.archive == "delta",
            )
        return self._spark

    def say(self, text: str) -> None:
        """A step of the work, in a few words."""
        self._show({"job": self.job, "id": self.run_id, "step": text}, f"{self.job}  {text}")

    def progress(self, done: int, total: int | None = None, **more: Any) -> None:
        """How many of how many (None: unknown) are done; ``more`` are other numbers and words to show. The line has the
        percentage and an estimate of the remaining time, too."""
        found = {"job": self.job, "id": self.run_id, "done": done, "total": total, **more}
        parts = [self.job, f"{done:,}{f' of {total:,}' if total is not None else ''}"]
        parts += filter(None, (percent(done, total), self._estimate.text(done, total, clock.monotonic())))
        parts += [f"{name} {value:,}" if isinstance(value, (int, float)) else f"{name} {value}"
                  for name, value in more.items()]  # fmt: skip
        self._show(found, "  ".join(parts))

    def on_progress(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        """Let somebody else hear of progress, too."""
        self._heard.append(heard)

    def keep(self, **values: Any) -> None:
        """Write down, in the run's record, what another attempt at this run has to know; it is there when this returns.

        Raises:
            ServiceUnreachable, ServiceRefused: it is not.
        """
        self.kept.update(values)
        for write in self._keepers:
            write()

    def on_keep(self, write: Callable[[], None]) -> None:
        """Have what is kept written down."""
        self._keepers.append(write)

    def close(self) -> None:
        """Stop Spark, if it was started here, and close the connection to the gateway."""
        self._reporter.close()
        self.service.close()
        if self._spark is not None and self._owns_spark:
            close_session(self._spark)
            self._spark = None

    def _show(self, found: Mapping[str, Any], line: str) -> None:
        self._reporter.show(found, line)
        for heard in self._heard:
            heard(found)


@runtime_checkable
class Job(Protocol):
    """A job. Its class takes no arguments."""

    name: str
    """As in :data:`JOBS`."""
    help: str
    """What it does and what it promises: a few sentences, the first one as a summary."""
    options: tuple[Option, ...]

    def run(self, context: Context) -> Outcome:
        """Do it. The work of a run that ended in the middle goes on, or is done again without harm.

        Raises:
            GatewayError: it cannot be done; a fault of :mod:`gateway.pipeline.faults` or another error with a code.
        """


def job_of(name: str) -> Job:
    """The job of that name. Raises KeyError where there is none."""
    module, _, kind = JOBS[name][0].partition(":")
    job: Job = getattr(import_module(module), kind)()
    return job


def options_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a job with its defaults; what it does not know is refused.

    Raises:
        KeyError: the job has no such option.
    """
    known = {option.name: (() if option.many and option.default is None else option.default) for option in job.options}
    if unknown := given.keys() - known.keys():
        raise KeyError(f"the job {job.name} has no option {min(unknown)!r}; it has {', '.join(known) or 'none'}")
    return known | dict(given)
