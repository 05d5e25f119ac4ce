"""``gateway pipeline doctor``: whether everything is there that the jobs need.

:data:`CHECKS` is the table: each check is a function from the settings to a sentence; what it raises is its finding,
with the exit status of the error. No check needs another one to have passed, so all of them are always made.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gateway.errors import GatewayError, PipelineFault, SparkMissing
from gateway.exits import DONE, exit_status
from gateway.pipeline import session
from gateway.pipeline.faults import fault_of
from gateway.pipeline.service import Service, decoded
from gateway.pipeline.settings import Pipeline
from gateway.runtime.clock import clock

CLOCK_MAX: Final = 5.0
"""How far this machine's clock and the gateway's may be apart, in seconds: both decide which rows are late."""
SPACE_LOW: Final = 1 << 30
"""Less free space than this is worth a word, in octets."""
LAG_LARGE: Final = 1_000_000
"""A cursor that is further behind is worth a word, in rows."""
ADBC: Final = {"sqlite": "adbc_driver_sqlite.dbapi", "postgresql": "adbc_driver_postgresql.dbapi"}
"""Database -> the module that reads it as Arrow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    name: str
    mark: str
    """``ok``, ``note`` (it works, but), or ``FAIL``."""
    text: str
    exit: int = DONE

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


class Remark(Exception):
    """It works, but somebody should know."""


def examine_pipeline(settings: Callable[[], Pipeline]) -> list[Finding]:
    """Make all the checks; where the settings cannot be read, that is the only finding."""
    try:
        pipeline = settings()
    except GatewayError as error:
        return [Finding("settings", "FAIL", str(error), exit_status(type(error)))]
    return [_made(name, check, pipeline) for name, check in CHECKS]


def _made(name: str, check: Callable[[Pipeline], str], pipeline: Pipeline) -> Finding:
    try:
        return Finding(name, "ok", check(pipeline))
    except Remark as remark:
        return Finding(name, "note", str(remark))
    except Exception as error:
        fault = fault_of(error)
        return Finding(name, "FAIL", str(fault), exit_status(type(fault)))


def _java(_: Pipeline) -> str:
    path, version = session.java()
    return f"Java {version}, {path}"


def _packages(_: Pipeline) -> str:
    found = session.check_versions()
    return ", ".join(f"{name} {version}" for name, version in found.items()) + f", Python {sys.version.split()[0]}"


def _jars(pipeline: Pipeline) -> str:
    if pipeline.settings.archive != "delta":
        return 'not needed: pipeline.archive = "parquet"'
    jars = session.delta_jars(pipeline)
    return f"{len(jars)} in {jars[0].parent}"


def _gateway(pipeline: Pipeline) -> str:
    with Service(pipeline) as service:
        found = service.ask("GET", "/v1/log/head", query={"log": "events"})
    rows = sum(shard["head"] - shard["floor"] + 1 for shard in found["shards"] if shard["head"])
    if not found["arrow"]:
        raise Remark(
            f"{pipeline.url} answers, without Arrow: logs are read as NDJSON, ten times slower; install "
            "amqp-gateway[arrow] where it runs"
        )
    return f"{pipeline.url} answers, with Arrow; {rows:,} events in {len(found['shards'])} shards"


def _key(pipeline: Pipeline) -> str:
    with Service(pipeline) as service:
        service.ask("GET", "/v1/pipeline/runs")
    return "is taken, for logs and runs" if pipeline.api_key else "none is given, and none is wanted"


def _ledger(pipeline: Pipeline) -> str:
    if not pipeline.ledger_dsn:
        return "read over HTTP; pipeline.direct reads it straight"
    module = ADBC[pipeline.ledger_dsn.partition(":")[0].partition("+")[0]]
    try:
        driver = import_module(module)
    except ImportError:
        raise SparkMissing(f"{module.partition('.')[0]} is not installed: pip install 'amqp-gateway[spark]'") from None
    where = pipeline.ledger_dsn
    if where.startswith("sqlite"):
        # Opening a file that is not there would make it.
        path = Path(where.partition("///")[2])
        if not path.is_file():
            raise PipelineFault(f"there is no ledger at {path}")
        where = str(path)
    with driver.connect(where) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM shards")
        (shards,) = cursor.fetchone()
    return f"{module.partition('.')[0]} reads it: {shards} shards"


def _storage(pipeline: Pipeline) -> str:
    if not pipeline.local:
        raise Remark(f"{pipeline.storage} is no folder: the first run will tell")
    return _folder(Path(pipeline.storage))


def _scratch(pipeline: Pipeline) -> str:
    return _folder(Path(pipeline.settings.scratch or tempfile.gettempdir()))


def _folder(path: Path) -> str:
    """Whether a folder, or the nearest one above it that is there, can be written, and how much room there is."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    number, name = tempfile.mkstemp(prefix=".doctor-", dir=there)
    try:
        os.write(number, b"x")
        os.fsync(number)
    finally:
        os.close(number)
        os.unlink(name)
    free = shutil.disk_usage(there).free
    said = f"{path} can be {'written' if there == path.absolute() else 'made'}; {free / (1 << 30):,.1f} GiB free"
    if free < SPACE_LOW:
        raise Remark(said)
    return said


def _cursors(pipeline: Pipeline) -> str:
    with Service(pipeline) as service:
        found = service.ask("GET", "/v1/log/cursors")["cursors"]
    said = ", ".join(f"{each['name']} {each['backlog']:,} behind" for each in found) or "none"
    if any(each["backlog"] > LAG_LARGE for each in found):
        raise Remark(f"{said}; one that nobody moves on holds the log back: see gateway pipeline status")
    return said


def _clock(pipeline: Pipeline) -> str:
    before = clock.utc()
    with Service(pipeline) as service:
        answer = service.exchange("GET", "/v1/pipeline/runs")
    after = clock.utc()
    decoded(pipeline.url, answer)
    if "date" not in answer.headers:
        raise Remark("the gateway does not say what time it is")
    theirs = parsedate_to_datetime(answer.headers["date"])
    # Theirs is in whole seconds, and of some moment between asking and answer.
    apart = max((before - theirs).total_seconds() - 1, (theirs - after).total_seconds(), 0.0)
    if apart > CLOCK_MAX:
        raise PipelineFault(
            f"{apart:.0f} s apart from the gateway's: times of events cannot be compared; set both by NTP"
        )
    return "as the gateway's"


CHECKS: Final[tuple[tuple[str, Callable[[Pipeline], str]], ...]] = (
    ("java", _java),
    ("packages", _packages),
    ("delta jars", _jars),
    ("gateway", _gateway),
    ("key", _key),
    ("ledger", _ledger),
    ("storage", _storage),
    ("scratch", _scratch),
    ("cursors", _cursors),
    ("clock", _clock),
)
"""Name, check; in the order in which what is wrong should be put right."""
