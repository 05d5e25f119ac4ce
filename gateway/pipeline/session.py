"""Spark, started as the jobs need it.

The settings of a session are a table, :func:`settings_of`: UTC, so that a day is the same day everywhere; loopback, so
that a driver on this machine listens to nobody else; Python of this process for the workers, for without that they are
started with the first ``python3`` of the path; filters pushed down; sketches that are aggregated in memory. Under
``spark-submit`` the JVM is there before us, and what was given to it stands.

Java is looked for before Spark is, because what Spark says about a missing one helps nobody.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.errors import ConfigurationError, JavaMissing, SparkMissing
from gateway.pipeline.scratch import Scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.settings import Pipeline

JAVA_MIN: Final = 17
"""Oldest Java on which Spark 4 runs."""
JAVA_PACKAGE: Final = "install openjdk-17-jre-headless (Debian, Ubuntu), or another Java 17 or later"
JAVA_TIMEOUT: Final = 30.0
"""How long Java may take to say its version, in seconds."""
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Variable that ``spark-submit`` sets for the Python that it starts."""
BEFORE_JAVA: Final = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.jars")
"""Settings that come too late when the JVM runs already."""
END_TIMEOUT: Final = 15.0
"""How long the JVM may take to end, in seconds."""
VERSIONS: Final[tuple[tuple[str, tuple[int, int], tuple[int, int]], ...]] = (
    ("pyspark", (4, 2), (4, 4)),
    ("pyarrow", (18, 0), (1_000, 0)),
    ("pandas", (2, 2), (3, 0)),
)
"""Package, first version that works, first one that does not."""
LOOPBACK: Final = re.compile(r"local(\[.*\])?$|spark://(127\.|localhost)")
"""Masters that are on this machine."""
DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Few files a table: with Delta's own 50 partitions opening one takes twice the CPU, and VACUUM ten times.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""What Delta needs besides its jars."""
DELTA_JAR: Final = "delta-spark"
"""Prefix of the name of the special one."""
LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex{5}
"""
"""Settings of Spark's logging."""

_scratches: list[Scratch] = []
"""Of the sessions of this process that are not closed: one at most, for Spark has one context a process."""


def spark_session(
    pipeline: Pipeline,
    master: str | None = None,
    app: str = "gateway",
    *,
    delta: bool = False,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or take the session that this process has.

    Args:
        master: where it runs; None: as ``pipeline.master`` says. ``spark-submit`` decides alone.
        delta: with Delta's jars and catalog.
        extra: settings of Spark that count more than all others.

    Raises:
        JavaMissing: there is no Java, or it is too old.
        SparkMissing: PySpark, PyArrow or pandas is missing, or of a version that does not work.
        ConfigurationError: Delta's jars are not there.
    """
    check_versions()
    given = _submitted()
    if given is None:
        java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    where = (given or {}).get("spark.master") or master or pipeline.settings.master
    if LOOPBACK.match(where):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not _scratches:
        _scratches.append(Scratch(pipeline.settings.scratch))
    try:
        wanted = settings_of(pipeline, where, _scratches[-1].path)
        if delta:
            wanted |= DELTA
            if given is None:
                wanted["spark.jars"] = ",".join(str(jar) for jar in delta_jars(pipeline))
            else:
                check_submitted_jars(given.get("spark.jars", ""))
        builder = SparkSession.builder.appName(app)
        if given is None:
            builder = builder.master(where)
        for name, value in merged(wanted, pipeline.settings.spark, extra or {}).items():
            if given is None or (name not in given and not name.startswith(BEFORE_JAVA)):
                builder = builder.config(name, value)
        return builder.getOrCreate()
    except BaseException:
        _scratches.pop().remove()
        raise


def _submitted() -> dict[str, str] | None:
    """The settings that ``spark-submit`` was given, if it was that which started this Python: they stand."""
    if SUBMITTED not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Settings over settings: a later one counts more, but options of Java are added to those that are there."""
    found: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.items():
            adds = name.endswith("extraJavaOptions") and name in found
            found[name] = f"{found[name]} {value}" if adds else value
    return found


def close_session(spark: SparkSession) -> None:
    """Stop Spark, end the JVM that was started for it, and remove what the run needed only while it lasted."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()  # it ends when nobody holds the other end
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        SparkContext._gateway = SparkContext._jvm = None
    while _scratches:
        _scratches.pop().remove()


def scratch() -> Path:
    """The folder of the session that this process has: what is in it goes with the session.

    Raises:
        ConfigurationError: it has none.
    """
    if not _scratches:
        raise ConfigurationError("this process has no session of the pipeline: begin with gateway.pipeline.session")
    return _scratches[-1].path


def settings_of(pipeline: Pipeline, master: str, scratch: Path) -> dict[str, str]:
    """Settings for Spark, by name. No secret is among it."""
    found = {
        "spark.driver.memory": pipeline.settings.memory,
        "spark.driver.extraJavaOptions": (
            f"-Duser.timezone=UTC -Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={_logging(scratch)}"
        ),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.local.dir": str(scratch),
        "spark.log.level": "ERROR",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|api[._]?key|dsn",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # With the default of 128 groups an aggregation with sketches is sorted instead of hashed: half as fast.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        # The reader that takes filters fails where this is off, which is the default.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if LOOPBACK.match(master):
        found |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return found


def _logging(scratch: Path) -> Path:
    """A file that lets Spark say what is wrong, and nothing else; what it says before it has read its settings, too."""
    path = scratch / "log4j2.properties"
    path.write_text(LOGGING, encoding="utf-8")
    return path


def delta_jars(pipeline: Pipeline) -> list[Path]:
    """Delta's jars.

    Raises:
        ConfigurationError: there are none where they should be.
    """
    folder = Path(pipeline.settings.jars or ".servers/delta").absolute()
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name.startswith(DELTA_JAR) for jar in jars):
        raise ConfigurationError(
            f"pipeline.jars: there is no delta-spark jar in {folder}; deploy/spark/jars.sh fetches Delta's jars, and "
            'pipeline.archive = "parquet" needs none'
        )
    return jars


def check_submitted_jars(submitted: str) -> None:
    """Whether a JVM that ``spark-submit`` started has Delta's jars: it takes none any more.

    Raises:
        ConfigurationError: it was given none, and Spark itself has none.
    """
    own = Path(os.environ.get("SPARK_HOME", "")) / "jars"
    if DELTA_JAR not in submitted and not any(own.glob(f"{DELTA_JAR}*.jar")):
        raise ConfigurationError(
            'pipeline.archive = "delta" needs Delta\'s jars, and spark-submit was given none: --jars, with all that '
            "deploy/spark/jars.sh fetches"
        )


@cache
def java() -> tuple[str, int]:
    """The Java that Spark will run on: its path and its version.

    Raises:
        JavaMissing: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise JavaMissing(f"Spark needs Java {JAVA_MIN}, and there is none {where}: {JAVA_PACKAGE}")
    try:
        said = subprocess.run(  # noqa: S603  # the machine's own Java
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(f"{path} does not run: {error}. {JAVA_PACKAGE[0].upper()}{JAVA_PACKAGE[1:]}") from None
    version = java_version(said.stderr + said.stdout)
    if version is None:
        raise JavaMissing(f"{path} does not say its version: {JAVA_PACKAGE}")
    if version < JAVA_MIN:
        raise JavaMissing(f"{path} is Java {version}, and Spark needs {JAVA_MIN} or later: {JAVA_PACKAGE}")
    return path, version


def java_version(said: str) -> int | None:
    """The version in what ``java -version`` prints: 8 of ``1.8.0_412``, 17 of ``17.0.15``."""
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def check_versions() -> dict[str, str]:
    """The versions of what Spark needs in Python.

    Raises:
        SparkMissing: something is missing, or of a version that does not work.
    """
    found: dict[str, str] = {}
    for name, first, beyond in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise SparkMissing(f"{name} is not installed: pip install 'amqp-gateway[spark]'") from None
        major, minor = (int(part) for part in re.findall(r"\d+", found[name] + ".0")[:2])
        if not first <= (major, minor) < beyond:
            raise SparkMissing(
                f"{name} is {found[name]}; the pipeline works with {_dotted(first)} and later"
                f"{f', before {_dotted(beyond)}' if beyond[0] < 1_000 else ''}: pip install 'amqp-gateway[spark]'"
            )
    return found


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)
