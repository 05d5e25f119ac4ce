"""A private RabbitMQ with management and shovel, and the one that is a package of the system (3.10: it speaks 0-8).

:mod:`tests.servers.rabbitmq4` has the releases of the 4.x line.

Erlang finds its nodes through a name service, ``epmd``. The node starts one in the background if there is none,
and that one would outlive it; so a private one is started first, in the foreground, on a port of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from functools import cached_property
from pathlib import Path
from shutil import which
from typing import Any, ClassVar
from urllib.parse import quote

from tests.servers.certificates import EXPIRED, MUTUAL, Certificates
from tests.servers.process import HOST, Server, ServerUnavailable, accepts, wait_until

_BIN = Path("/usr/lib/rabbitmq/bin")
_WATERMARK = "2GB"

_CONFIGURATION = """\
cluster_name = gateway-tests
listeners.tcp.1 = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
management.disable_stats = false
collect_statistics_interval = 1000
vm_memory_high_watermark.absolute = {watermark}
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = warning
log.file = false
"""

_TLS_CONFIGURATION = """\
[{{rabbit, [
  {{auth_mechanisms, ['PLAIN', 'AMQPLAIN', 'EXTERNAL', 'RABBIT-CR-DEMO']}},
  {{ssl_cert_login_from, common_name}},
  {{ssl_listeners, [{{"127.0.0.1", {amqps}}}]}},
  {{ssl_options, [
    {{cacertfile, "{ca}"}}, {{certfile, "{folder}/server.pem"}}, {{keyfile, "{folder}/server.key"}},
    {{verify, verify_peer}}, {{fail_if_no_peer_cert, false}},
    {{sni_hosts, [
      {{"{expired}", [{{certfile, "{folder}/expired.pem"}}, {{keyfile, "{folder}/expired.key"}}]}},
      {{"{mutual}", [{{certfile, "{folder}/mutual.pem"}}, {{keyfile, "{folder}/mutual.key"}},
        {{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}]}}
    ]}}
  ]}}
]}}].
"""
"""In Erlang's own terms: the names of TLS are not among the settings of the other file."""


class RabbitMQ(Server):
    """guest/guest, virtual host ``/``. What all releases have in common."""

    port_names: ClassVar[tuple[str, ...]] = ("amqp", "management", "distribution", "epmd")
    versions: ClassVar[tuple[str, ...]]
    more_configuration: ClassVar[str] = ""
    """Further lines of ``rabbitmq.conf``."""
    plugins: ClassVar[tuple[str, ...]] = ("rabbitmq_management", "rabbitmq_shovel")

    def url(self, version: str = "auto", virtual_host: str | None = None) -> str:
        assert version in ("", "auto", *self.versions), f"{self.kind} does not speak {version}"
        return super().url(version, virtual_host)

    @property
    def scripts(self) -> Path:
        """The folder of ``rabbitmq-server`` and ``rabbitmqctl``."""
        raise NotImplementedError

    @cached_property
    def release(self) -> tuple[int, ...]:
        """Its version as numbers, as the server itself states it: ``(4, 0, 5)``."""
        return tuple(int(part) for part in re.findall(r"\d+", self.api("GET", "overview")["rabbitmq_version"])[:3])

    @property
    def environment(self) -> dict[str, str]:
        """What the server and its command-line tools are told."""
        folder, ports = self.folder, self.state.ports
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"gateway{ports['amqp']}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(ports["amqp"]),
            "RABBITMQ_DIST_PORT": str(ports["distribution"]),
            "RABBITMQ_CTL_DIST_PORT_MIN": "1024",
            "RABBITMQ_CTL_DIST_PORT_MAX": "10239",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
            "ERL_EPMD_PORT": str(ports["epmd"]),
            "ERL_EPMD_ADDRESS": HOST,
        }

    def prepare(self) -> None:
        for name in ("mnesia", "log"):
            (self.folder / name).mkdir()
        text = _CONFIGURATION.format(watermark=_WATERMARK, **self.state.ports)
        (self.folder / "rabbitmq.conf").write_text(text + self.more_configuration)
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (self.folder / "rabbitmq-env.conf").touch()

    def launch(self) -> None:
        if not accepts(self.state.ports["epmd"]):
            self.spawn("epmd", ["epmd"], self.environment)
            wait_until(lambda: accepts(self.state.ports["epmd"]), 10.0)
        self.spawn("server", [self.scripts / "rabbitmq-server"], self.environment)

    def ready(self) -> bool:
        """All plugins are up when management answers; the listener comes before or after."""
        if not accepts(self.port) or not accepts(self.state.ports["management"]):
            return False
        try:
            return "rabbitmq_version" in self.api("GET", "overview")
        except (urllib.error.URLError, ConnectionError):
            return False

    # Beside AMQP -------------------------------------------------------------------------------------

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` (about 2 s) and return what it printed.

        Raises:
            RuntimeError: it failed; with its output.
        """
        done = subprocess.run(
            [str(self.scripts / "rabbitmqctl"), "--quiet", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call the management API: ``path`` below ``/api/``. Returns the decoded answer, None for an empty one.

        Raises:
            urllib.error.HTTPError: it said no.
        """
        token = b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{HOST}:{self.state.ports['management']}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def memory_alarm(self, on: bool) -> None:
        """Raise the memory alarm (nobody who publishes is read any more), or end it."""
        level = ("0.0001",) if on else ("absolute", _WATERMARK)
        self.ctl("set_vm_memory_high_watermark", *level)

    def write_tables(self) -> None:
        """Have Mnesia and Ra write what they know of queues. A broker that is killed within seconds of a declaration
        forgets the queue otherwise (docs/reference/brokers.md)."""
        self.ctl("eval", "mnesia:dump_log(), [dets:sync(T) || T <- dets:all()].")

    def queue_depth(self, queue: str, virtual_host: str = "/") -> int:
        """Messages in the queue, ready and unacknowledged, as the queue itself counts them now.

        Raises:
            LookupError: there is no such queue.
        """
        rows = json.loads(self.ctl("list_queues", "-p", virtual_host, "--formatter", "json", "name", "messages"))
        for row in rows:
            if row["name"] == queue:
                return int(row["messages"])
        raise LookupError(queue)

    def queues(self, virtual_host: str = "/") -> set[str]:
        """Names of all queues."""
        return {row["name"] for row in self.api("GET", f"queues/{quote(virtual_host, safe='')}?columns=name")}

    def delete_queue(self, queue: str, virtual_host: str = "/") -> None:
        """Delete the queue under its consumers."""
        self.api("DELETE", f"queues/{quote(virtual_host, safe='')}/{quote(queue, safe='')}")

    def close_connections(self, reason: str = "closed by an administrator") -> None:
        """Close every AMQP connection with connection.close 320."""
        self.ctl("close_all_connections", reason)

    def create_user(self, name: str, password: str) -> None:
        """A user with all rights in the virtual host ``/``."""
        self.api("PUT", f"users/{quote(name, safe='')}", {"password": password, "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"permissions/%2F/{quote(name, safe='')}", everything)

    def delete_user(self, name: str) -> None:
        """Delete the user; its connections end."""
        self.api("DELETE", f"users/{quote(name, safe='')}")


class RabbitMQ310(RabbitMQ):
    """3.10, the package of the system: versions 0-8 and 0-9-1."""

    kind = "rabbitmq-3.10"
    versions = ("0-8", "0-9-1")

    @classmethod
    def require(cls) -> None:
        if not (_BIN / "rabbitmq-server").exists() or not which("epmd"):
            raise ServerUnavailable(
                "RabbitMQ is not installed: run tests/servers/install.sh, or `apt-get install rabbitmq-server`."
            )
        if not any(_BIN.parent.glob("lib/rabbitmq_server-3.*")):
            raise ServerUnavailable(
                "The installed RabbitMQ does not speak AMQP 0-8: install rabbitmq-server 3.x (Debian 12 has 3.10)."
            )

    @property
    def scripts(self) -> Path:
        return _BIN


class RabbitMQWithTls(RabbitMQ):
    """With a TLS port beside the plain one, always private: :data:`~tests.servers.PRIVATE_KINDS`. Its mechanisms are
    EXTERNAL too, and one of rounds (RABBIT-CR-DEMO)."""

    port_names = (*RabbitMQ.port_names, "amqps")
    plugins = ("rabbitmq_management", "rabbitmq_auth_mechanism_ssl")

    @property
    def certificates(self) -> Certificates:
        """Those of the TLS port and its clients."""
        return Certificates(self.folder / "tls")

    @property
    def tls_port(self) -> int:
        """The TLS port; see :mod:`tests.servers.certificates` for what it shows to whom."""
        return self.state.ports["amqps"]

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | {"RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config")}

    def prepare(self) -> None:
        super().prepare()
        certificates = self.certificates
        certificates.make()
        text = _TLS_CONFIGURATION.format(
            amqps=self.tls_port,
            ca=certificates.ca_file,
            folder=certificates.folder,
            expired=EXPIRED,
            mutual=MUTUAL,
        )
        (self.folder / "advanced.config").write_text(text)

    def ready(self) -> bool:
        return accepts(self.tls_port) and super().ready()


class RabbitMQ310WithTls(RabbitMQWithTls, RabbitMQ310):
    """3.10 with TLS."""

    kind = "rabbitmq-3.10-tls"
