"""A Spark cluster of one master and two workers on loopback, from PySpark's own jars, with bounded memory.

Each process listens on a port that the system chose, says in its log which one, and is ended by its id, with the
executors that it started.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from gateway.pipeline.session import java

Ready = Callable[[], re.Match[str]]
HOME = Path(pyspark.__path__[0])
WORKERS = 2
HEAP = "192m"
"""Of the master and of each worker, which only watch over executors."""
EXECUTOR = "640m"
JAVA_OPTIONS = "-Duser.timezone=UTC -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Less than a minute of work is not worth compiling twice."""
START_TIMEOUT = 90.0
END_TIMEOUT = 15.0
MASTER_AT = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
REGISTERED = re.compile(r"Successfully registered with master")
LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:spark.test.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs."""

    master: str
    """``spark://127.0.0.1:PORT``."""
    folder: Path

    @property
    def conf(self) -> dict[str, str]:
        """What a driver asks of it: an executor on each worker, of one core and bounded memory."""
        return {
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.memory": EXECUTOR,
            "spark.executor.cores": "1",
            "spark.cores.max": str(WORKERS),
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }

    def executors(self) -> set[str]:
        """The workers on which something ran, by their folder."""
        return {path.parents[3].name for path in self.folder.glob("worker-*/*/app-*/*/stderr")}


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start it, and end all of it."""
    with ExitStack() as stack:
        ready = stack.enter_context(_process(folder / "master", "master.Master", [], MASTER_AT))
        master = ready()[1]
        workers = []
        for number in range(WORKERS):
            place = folder / f"worker-{number}"
            arguments = ["--cores", "1", "--memory", "1g", "--work-dir", str(place / "work"), master]
            workers.append(stack.enter_context(_process(place, "worker.Worker", arguments, REGISTERED)))
        for registered in workers:
            registered()
        yield Cluster(master, folder)


@contextmanager
def _process(folder: Path, kind: str, arguments: Sequence[str], ready: re.Pattern[str]) -> Iterator[Ready]:
    """One process; what it gives waits until it has said that it is ready."""
    (folder / "work").mkdir(parents=True)
    (folder / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
    log = folder / "log"
    command = [
        java()[0], f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dspark.test.log={log}",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}", f"-Djava.io.tmpdir={folder}",
        "-Dspark.master.rest.enabled=false", "-Dspark.worker.cleanup.enabled=false",
        "-cp", str(HOME / "jars" / "*"),
        f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments,
    ]  # fmt: skip
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, env=environ(folder), stdout=said, stderr=said, cwd=folder, start_new_session=True
        )
    try:
        yield lambda: _wait(process, log, folder / "said", ready)
    finally:
        _end(process)


def environ(folder: Path) -> Mapping[str, str]:
    """The environment of Spark's processes: nothing of the machine's Spark, and loopback."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "GATEWAY_"))
    }
    return {
        **kept,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",  # a worker asks for it where Spark was installed by pip
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
    }


def _wait(process: subprocess.Popen[bytes], log: Path, said: Path, ready: re.Pattern[str]) -> re.Match[str]:
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        if found := ready.search(text):
            return found
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Spark did not start:\n{said.read_text(errors='replace')}\n{text[-4_000:]}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and the executors in its group."""
    process.terminate()
    try:
        process.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        pass  # its group is killed below
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing was left
    process.wait()
