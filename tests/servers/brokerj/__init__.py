"""A private Apache Qpid Broker-J: 0-8, 0-9, 0-9-1 and 0-10 on one port, told apart by the protocol header.

Two virtual hosts: ``default``, whose queues and messages are on disk (Derby) and outlive a restart, and
``memory``, which is quicker and forgets. ``init.json`` is only read before the first start; afterwards the broker
has a configuration of its own in its folder.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import quote

from gateway.versions import VERSION_NAMES
from tests.servers.certificates import Certificates
from tests.servers.process import HOST, INSTALLED, Server, ServerUnavailable, accepts

_JARS = INSTALLED / "brokerj"
_INITIAL = Path(__file__).with_name("init.json")
_SECRET = "of no importance"
"""Of the key store, which lies in the private folder as the key itself does."""


class BrokerJ(Server):
    """guest/guest; virtual hosts ``default`` (durable; the empty name means it too) and ``memory``."""

    kind = "brokerj"
    port_names = ("amqp", "http")
    virtual_host = "default"
    versions = VERSION_NAMES

    @classmethod
    def require(cls) -> None:
        if not which("java"):
            raise ServerUnavailable(
                "Java is not installed: run tests/servers/install.sh, or `apt-get install openjdk-17-jdk-headless`."
            )
        if not any(_JARS.glob("qpid-broker-core-*.jar")):
            raise ServerUnavailable("Apache Qpid Broker-J is not installed: run tests/servers/install.sh.")

    @property
    def initial(self) -> Path:
        """The configuration it begins with."""
        return _INITIAL

    def prepare(self) -> None:
        (self.folder / "work").mkdir()

    def launch(self) -> None:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "QPID_WORK": str(self.folder / "work"),
        }
        settings = {
            "qpid.amqp_port": str(self.port),
            "qpid.http_port": str(self.state.ports["http"]),
            "broker.name": "test",
        }
        # As few compiler and collector threads as it can do with: it shares two processors with the tests.
        java = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self.folder}"]
        command = [*java, "-cp", f"{_JARS}/*", "org.apache.qpid.server.Main", "-icp", str(self.initial), "-st", "JSON"]
        for name, value in settings.items():
            command += ["-prop", f"{name}={value}"]
        self.spawn("server", command, environment)

    def ready(self) -> bool:
        """It listens before its virtual hosts are active, so these are asked for."""
        if not accepts(self.port) or not accepts(self.state.ports["http"]):
            return False
        try:
            return {host["state"] for host in self.api("GET", "virtualhost")} == {"ACTIVE"}
        except (urllib.error.URLError, ConnectionError):
            return False

    # Beside AMQP -------------------------------------------------------------------------------------

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Call the management API: ``path`` below ``/api/latest/``. Returns the decoded answer, None for an
        empty one.

        Raises:
            urllib.error.HTTPError: it said no.
        """
        token = b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"http://{HOST}:{self.state.ports['http']}/api/latest/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def queue(self, queue: str, virtual_host: str = "default") -> dict[str, Any]:
        """All attributes of a queue, ``statistics`` among them.

        Raises:
            LookupError: there is no such queue.
        """
        for row in self.api("GET", f"queue/{virtual_host}/{virtual_host}"):
            if row["name"] == queue:
                return dict(row)
        raise LookupError(queue)

    def queue_depth(self, queue: str, virtual_host: str = "default") -> int:
        """Messages in the queue, those that are out for an acknowledgement included.

        Raises:
            LookupError: there is no such queue.
        """
        return int(self.queue(queue, virtual_host)["statistics"]["queueDepthMessages"])

    def queues(self, virtual_host: str = "default") -> set[str]:
        """Names of all queues."""
        return {row["name"] for row in self.api("GET", f"queue/{virtual_host}/{virtual_host}")}

    def create_queue(self, queue: str, virtual_host: str = "default", **attributes: Any) -> None:
        """Create a queue with attributes that AMQP cannot ask for, as ``overflowPolicy`` and
        ``maximumQueueDepthMessages``."""
        self.api("POST", f"queue/{virtual_host}/{virtual_host}", {"name": queue, **attributes})

    def delete_queue(self, queue: str, virtual_host: str = "default") -> None:
        """Delete the queue under its consumers."""
        self.api("DELETE", f"queue/{virtual_host}/{virtual_host}?id={quote(self.queue(queue, virtual_host)['id'])}")

    def close_connections(self) -> None:
        """Close every AMQP connection with connection.close."""
        for connection in self.api("GET", "connection"):
            try:
                self.api("DELETE", f"connection?id={quote(connection['id'])}")
            except urllib.error.HTTPError as error:
                if error.code != 404:  # gone meanwhile
                    raise

    def create_user(self, name: str, password: str) -> None:
        """A user who may do everything."""
        self.api("POST", "user/plain", {"name": name, "type": "managed", "password": password})

    def delete_user(self, name: str) -> None:
        """Delete the user."""
        self.api("DELETE", f"user/plain/{quote(name, safe='')}")


class BrokerJWithTls(BrokerJ):
    """With a TLS port beside the plain one, always private: :data:`~tests.servers.PRIVATE_KINDS`."""

    kind = "brokerj-tls"
    port_names = (*BrokerJ.port_names, "amqps", "external", "anonymous")

    @property
    def certificates(self) -> Certificates:
        """Those of the TLS port; it shows ``server`` to everybody."""
        return Certificates(self.folder / "tls")

    @property
    def tls_port(self) -> int:
        """The TLS port."""
        return self.state.ports["amqps"]

    @property
    def external_port(self) -> int:
        """A TLS port where a certificate is the only way to log in."""
        return self.state.ports["external"]

    @property
    def anonymous_port(self) -> int:
        """A port without TLS where everybody is the same."""
        return self.state.ports["anonymous"]

    @property
    def initial(self) -> Path:
        return self.folder / "init.json"

    def prepare(self) -> None:
        super().prepare()
        certificates = self.certificates
        certificates.make()
        certificates.write_key_store("server", _SECRET)
        document = json.loads(super().initial.read_text())
        store = {"storeUrl": f"file://{certificates.key_store('server')}", "keyStoreType": "pkcs12"}
        document["keystores"] = [{"name": "tls", "type": "FileKeyStore", **store, "password": _SECRET}]
        plain = next(port for port in document["ports"] if port["name"] == "AMQP")
        secure = {"name": "AMQPS", "port": str(self.tls_port), "transports": ["SSL"], "keyStore": "tls"}
        document["ports"].append(plain | secure)
        document["authenticationproviders"] += [
            {"name": "external", "type": "External"},
            {"name": "anonymous", "type": "Anonymous"},
        ]
        authorities = {"certificatesUrl": f"file://{certificates.ca_file}"}
        document["truststores"] = [{"name": "clients", "type": "NonJavaTrustStore", **authorities}]
        mutual = {"authenticationProvider": "external", "needClientAuth": True, "trustStores": ["clients"]}
        external = {"name": "EXTERNAL", "port": str(self.external_port), **mutual}
        document["ports"].append(plain | secure | external)
        anonymous = {"name": "ANONYMOUS", "port": str(self.anonymous_port), "authenticationProvider": "anonymous"}
        document["ports"].append(plain | anonymous)
        self.initial.write_text(json.dumps(document))

    def ready(self) -> bool:
        return accepts(self.tls_port) and super().ready()
