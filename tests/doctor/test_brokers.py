"""Real brokers, broken on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from gateway.config import BrokerSettings
from gateway.exits import NOT_FOUND, REFUSED, UNREACHABLE, USAGE
from gateway.upstreams import Upstream
from gateway.versions import VERSION_NAMES
from tests.doctor.conftest import Look
from tests.servers import BrokerJ, RabbitMQ, Server, serving
from tests.servers.certificates import EXPIRED, MUTUAL
from tests.servers.process import HOST, free_port, wait_until

pytestmark = pytest.mark.broker

SPOKEN = [
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
]
Name = Callable[[str], str]


@pytest.fixture
def rabbitmq(rabbitmq_of_version: RabbitMQ) -> RabbitMQ:
    """The one that speaks the version of the test."""
    return rabbitmq_of_version


@pytest.fixture
def servers(rabbitmq: RabbitMQ, brokerj: BrokerJ) -> dict[str, Any]:
    return {"rabbitmq": rabbitmq, "brokerj": brokerj}


def broker(url: str, *more: str) -> str:
    return "\n".join((f'[brokers.orders]\nurl = "{url}"', *more, ""))


def url_of(server: Server, version: str, **changes: str) -> str:
    """Its URL with another ``user``, ``password``, ``host`` or ``virtual_host``."""
    given = {"user": "guest", "password": "guest", "host": HOST, "virtual_host": server.virtual_host, **changes}
    host = quote(given["virtual_host"], safe="")
    return f"amqp://{given['user']}:{given['password']}@{given['host']}:{server.port}/{host}?version={version}"


def test_what_a_front_rewrites(look: Look, servers: dict[str, Any]) -> None:
    front = """
[fronts.legacy]
broker = "{}"
rules = {{ queue_mode = "off" }}
[[fronts.legacy.users]]
name = "a"
password = "b"
"""
    text = broker(url_of(servers["rabbitmq"], "0-9-1"))
    name = text.partition("[brokers.")[2].partition("]")[0]
    (finding,) = look(text + front.format(name), "brokers").all("broker.fronts")
    assert finding.where == "fronts.legacy"
    rules = "alternate_exchange, durable_subscription, mirrors, no_local, quorum_priority"
    assert finding.what.startswith(f"it rewrites for {name}: {rules}")
    assert finding.what.endswith("; switched off: queue_mode")


@pytest.mark.parametrize(("kind", "version"), SPOKEN)
def test_all_is_well(look: Look, servers: dict[str, Any], kind: str, version: str) -> None:
    found = look(broker(url_of(servers[kind], version)), "brokers")
    assert (found.failed, found.warned) == ([], []), found.text
    assert [finding.check for finding in found.report.findings if finding.check != "broker.clients"] == [
        "broker.dns", "broker.tcp", "broker.protocol", "broker.login", "broker.publish", "broker.blocked",
    ]  # fmt: skip
    modern = (kind, version) == ("rabbitmq", "0-9-1")
    assert ("old clients: AMQP 0-8 is not spoken; connect in 0-9-1" in found.text) == modern
    assert f"it speaks {version}: {'RabbitMQ' if kind == 'rabbitmq' else 'Apache Qpid'}" in found.text
    assert found.one("broker.publish").what == "the login may publish to the default exchange"


def test_the_version_is_found_out(look: Look, rabbitmq: RabbitMQ) -> None:
    found = look(broker(url_of(rabbitmq, "auto")), "brokers")
    assert "it speaks 0-9-1 (found by version=auto): RabbitMQ" in found.text


# ------------------------------------------------------------------------------------------- before the login


def test_a_host_without_an_address(look: Look) -> None:
    found = look(broker("amqp://no-such-host.invalid"), "brokers")
    assert "no-such-host.invalid" in found.one("broker.dns").what
    assert (found.failed, found.exit) == (["broker.dns"], UNREACHABLE)


def test_a_port_where_nobody_listens(look: Look) -> None:
    port = free_port()
    found = look(broker(f"amqp://{HOST}:{port}"), "brokers")
    assert found.one("broker.tcp").what == f"{HOST} port {port}: nobody listens there"
    assert (found.failed, found.exit) == (["broker.tcp"], UNREACHABLE)


def test_a_port_that_speaks_something_else(look: Look, rabbitmq: RabbitMQ) -> None:
    found = look(broker(f"amqp://{HOST}:{rabbitmq.state.ports['management']}?version=0-9-1"), "brokers", within=1.0)
    assert found.one("broker.protocol").what.startswith("nobody speaks AMQP 0-9-1 there")
    assert "management" in found.one("broker.protocol").do
    assert found.exit == UNREACHABLE


def test_another_version_than_the_configuration_says(look: Look, rabbitmq: RabbitMQ) -> None:
    found = look(broker(url_of(rabbitmq, "0-10")), "brokers")
    finding = found.one("broker.protocol")
    assert finding.what == "this port speaks AMQP 0-9, 0-9-1; the configuration says 0-10"
    assert finding.do == "Write ?version=0-9-1 in brokers.orders.url, or version=auto."
    assert found.exit == UNREACHABLE


def test_a_password_file_that_is_not_there(look: Look, rabbitmq: RabbitMQ) -> None:
    found = look(broker(rabbitmq.url("0-9-1"), 'password_file = "/nowhere/at/all"'), "brokers")
    assert "/nowhere/at/all" in found.one("broker.settings").what
    assert found.exit == USAGE


# ------------------------------------------------------------------------------------------------- the login


@pytest.mark.parametrize(("kind", "version"), SPOKEN)
def test_a_wrong_password(look: Look, servers: dict[str, Any], kind: str, version: str) -> None:
    found = look(broker(url_of(servers[kind], version, password="wrong-and-secret")), "brokers")
    finding = found.one("broker.login")
    if (kind, version) == ("rabbitmq", "0-8"):
        assert finding.what.startswith("it hung up on the login guest: ")
        assert finding.do.startswith("Correct user and password; ")
        assert (found.failed, found.exit) == (["broker.login"], UNREACHABLE)
    else:
        assert finding.what.startswith("it refuses the login guest: ")
        assert finding.do == "Correct user and password, percent-encoded in a URL."
        assert (found.failed, found.exit) == (["broker.login"], REFUSED)
    assert "wrong-and-secret" not in found.text


@pytest.mark.parametrize(("kind", "version"), SPOKEN)
def test_a_wrong_virtual_host(look: Look, servers: dict[str, Any], kind: str, version: str) -> None:
    found = look(broker(url_of(servers[kind], version, virtual_host="no such place")), "brokers")
    finding = found.one("broker.vhost")
    assert finding.what.startswith("guest cannot use the virtual host 'no such place': ")
    assert (found.failed, found.exit) == (["broker.vhost"], REFUSED)


def test_no_mechanism_in_common(look: Look, rabbitmq: RabbitMQ) -> None:
    found = look(broker(rabbitmq.url("0-9-1"), 'mechanisms = ["SCRAM-SHA-256"]'), "brokers")
    finding = found.one("broker.login")
    assert "It offers" in finding.why
    assert "PLAIN" in finding.why
    assert finding.do == "Allow one of them: brokers.NAME.mechanisms."
    assert found.exit == REFUSED


# ------------------------------------------------------------------------------------------------------ TLS


@pytest.fixture
def tls(private_server: Callable[[str], Any]) -> Any:
    return private_server("rabbitmq-tls")


def secure(server: Any, host: str = "localhost", **more: str) -> str:
    given = {"ca_file": server.certificates.ca_file, **more}
    table = ", ".join(f'{name} = "{value}"' for name, value in given.items() if value)
    return broker(f"amqps://{host}:{server.tls_port}?version=0-9-1", f"tls = {{{table}}}")


def test_a_certificate_that_is_fine(look: Look, tls: Any) -> None:
    found = look(secure(tls), "brokers")
    assert found.failed == [], found.text
    assert "its certificate is valid until" in found.one("broker.certificate").what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"server_name": EXPIRED}, "its certificate expired at "),
        ({"host": HOST}, f"its certificate is for localhost, broker.example, not for {HOST}"),
        ({"server_name": "other.example"}, "its certificate is for localhost, broker.example, not for other.example"),
        ({"ca_file": "other"}, "its certificate is signed by "),
        ({"ca_file": ""}, "its certificate is signed by "),
        ({"server_name": MUTUAL}, "localhost:"),
    ],
)
def test_a_certificate_that_is_not(look: Look, tls: Any, given: dict[str, str], what: str) -> None:
    if given.get("ca_file"):
        given = {**given, "ca_file": tls.certificates.other_ca_file}
    found = look(secure(tls, **given), "brokers")
    assert found.one("broker.certificate").what.startswith(what), found.text
    assert (found.failed, found.exit) == (["broker.certificate"], REFUSED)
    if given.get("server_name") == MUTUAL:
        assert "tls.cert_file" in found.text


def test_a_certificate_that_nobody_looks_at(look: Look, tls: Any) -> None:
    url = f"amqps://{HOST}:{tls.tls_port}?version=0-9-1"
    found = look(broker(url, "tls = {dangerous_disable_verification = true}"), "brokers")
    assert found.failed == [], found.text
    assert found.warned == ["broker.certificate"]


def test_tls_where_none_is_spoken(look: Look, tls: Any) -> None:
    text = secure(tls).replace(f":{tls.tls_port}", f":{tls.port}")
    found = look(text, "brokers")
    assert found.failed == ["broker.certificate"], found.text
    assert found.one("broker.certificate").do.startswith("Use amqp://")


def test_no_tls_where_it_is_spoken(look: Look, tls: Any) -> None:
    found = look(broker(f"amqp://localhost:{tls.tls_port}?version=0-9-1"), "brokers")
    assert found.failed == ["broker.protocol"], found.text
    assert found.one("broker.protocol").do == "Write amqps:// instead of amqp://: TLS is spoken there."


@pytest.mark.parametrize(
    ("port", "certificate", "check", "said"),
    [
        ("tls", "", "", "its certificate is valid until"),
        ("external", "client", "", "its certificate is valid until"),
        ("external", "", "broker.certificate", "It wants one of us, as a rule."),
        ("external", "foreign", "broker.certificate", "It does not take our certificate, as a rule."),
        ("plain", "", "broker.protocol", "Write amqps:// instead of amqp://: TLS is spoken there."),
    ],
)
def test_broker_j_over_tls(
    look: Look, private_server: Callable[[str], Any], port: str, certificate: str, check: str, said: str
) -> None:
    server = private_server("brokerj-tls")
    files = server.certificates
    number = server.external_port if port == "external" else server.tls_port
    scheme = "amqp" if port == "plain" else "amqps"
    table = {} if port == "plain" else {"ca_file": files.ca_file}
    if certificate:
        table |= {"cert_file": files.cert_file(certificate), "key_file": files.key_file(certificate)}
    more = 'mechanisms = ["EXTERNAL"]' if certificate else ""
    tls = ", ".join(f'{name} = "{value}"' for name, value in table.items())
    found = look(broker(f"{scheme}://localhost:{number}/default?version=0-10", f"tls = {{{tls}}}", more), "brokers")
    assert found.failed == ([check] if check else []), found.text
    assert said in found.text


# ------------------------------------------------------------------------------------------- what is there


def put(rabbitmq: RabbitMQ, kind: str, name: str, **body: Any) -> None:
    rabbitmq.api("PUT", f"{kind}/%2F/{quote(name, safe='')}", {"durable": True, **body})


@pytest.fixture
def bound(rabbitmq: RabbitMQ, unique_name: Name) -> tuple[str, str]:
    """A fanout exchange, and a queue that gets everything from it."""
    exchange, queue = unique_name("fan"), unique_name("work")
    put(rabbitmq, "exchanges", exchange, type="fanout")
    put(rabbitmq, "queues", queue)
    rabbitmq.api("POST", f"bindings/%2F/e/{exchange}/q/{queue}", {"routing_key": ""})
    return exchange, queue


def bridge(exchange: str, queue: str) -> str:
    return (
        f'[bridges.b]\nsource = {{broker = "orders", queue = "{queue}"}}\n'
        f'target = {{broker = "orders", exchange = "{exchange}"}}\n'
    )


@pytest.mark.parametrize(("kind", "version"), SPOKEN)
def test_what_the_configuration_names_and_is_not_there(
    look: Look, servers: dict[str, Any], kind: str, version: str
) -> None:
    text = broker(url_of(servers[kind], version)) + bridge("no-exchange", "no-queue")
    found = look(text, "brokers")
    assert found.failed == ["broker.queue", "broker.exchange"], found.text
    assert found.one("broker.queue").what == "there is no queue 'no-queue', and bridges.b needs it"
    assert found.one("broker.queue").do.startswith("gateway queues declare orders no-queue")
    assert found.one("broker.exchange").what == "there is no exchange 'no-exchange', and bridges.b needs it"
    assert found.exit == NOT_FOUND


@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
def test_looking_changes_nothing(look: Look, rabbitmq: RabbitMQ, bound: tuple[str, str], version: str) -> None:
    """Neither does a message come into a queue, nor is one taken out of it for a moment."""
    exchange, queue = bound
    body = {"properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "string"}
    assert rabbitmq.api("POST", f"exchanges/%2F/{exchange}/publish", body)["routed"]
    found = look(broker(rabbitmq.url(version)) + bridge(exchange, queue), "brokers")
    assert found.failed == [], found.text
    assert f"the login may publish to '{exchange}'" in found.text
    assert (f"the login may read from '{queue}'" in found.text) is (version == "0-9-1")
    get = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto"}
    messages = rabbitmq.api("POST", f"queues/%2F/{queue}/get", get)
    assert [(each["payload"], each["redelivered"]) for each in messages] == [("x", False)]


@pytest.fixture
def limited(rabbitmq: RabbitMQ, unique_name: Name) -> Iterator[Callable[..., str]]:
    """A user with these rights alone; its name."""
    made: list[str] = []

    def user(**rights: str) -> str:
        name = unique_name("limited")
        made.append(name)
        rabbitmq.create_user(name, "secret")
        rabbitmq.api("PUT", f"permissions/%2F/{name}", {"configure": "", "write": "", "read": "", **rights})
        return name

    yield user
    for name in made:
        rabbitmq.delete_user(name)


@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
def test_a_login_that_may_not_publish(
    look: Look, rabbitmq: RabbitMQ, bound: tuple[str, str], limited: Callable[..., str], version: str
) -> None:
    exchange, queue = bound
    url = url_of(rabbitmq, version, user=limited(read=".*"), password="secret")
    found = look(broker(url) + bridge(exchange, queue), "brokers")
    assert found.failed == ["broker.publish"], found.text
    assert found.warned == ["broker.publish"], "nobody asked for the default exchange"
    assert f"may not publish to '{exchange}'" in found.all("broker.publish")[0].what
    assert found.exit == REFUSED


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_a_login_that_may_not_publish_at_broker_j(
    look: Look, brokerj: BrokerJ, unique_name: Name, version: str
) -> None:
    name = unique_name("limited")
    brokerj.create_user(name, "secret")
    rule = {"identity": name, "objectType": "EXCHANGE", "operation": "PUBLISH", "outcome": "DENY"}
    place = "virtualhostaccesscontrolprovider/memory/memory"
    brokerj.api("POST", place, {"name": name, "type": "RuleBased", "rules": [rule]})
    try:
        url = url_of(brokerj, version, user=name, password="secret", virtual_host="memory")
        found = look(broker(url), "brokers")
    finally:
        brokerj.api("DELETE", f"{place}/{name}")
        brokerj.delete_user(name)
    assert (found.failed, found.warned) == ([], ["broker.publish"]), found.text
    assert found.one("broker.publish").what == f"the login {name} may not publish to the default exchange"


def test_a_login_that_may_not_read(
    look: Look, rabbitmq: RabbitMQ, bound: tuple[str, str], limited: Callable[..., str]
) -> None:
    exchange, queue = bound
    url = url_of(rabbitmq, "0-9-1", user=limited(write=".*"), password="secret")
    found = look(broker(url) + bridge(exchange, queue), "brokers")
    assert found.failed == ["broker.read"], found.text
    assert found.one("broker.read").what == f"the login may not read from '{queue}'"
    assert found.exit == REFUSED


def test_a_login_without_rights_in_the_virtual_host(look: Look, rabbitmq: RabbitMQ, unique_name: Name) -> None:
    name = unique_name("outsider")
    rabbitmq.api("PUT", f"users/{name}", {"password": "secret", "tags": ""})
    try:
        found = look(broker(url_of(rabbitmq, "0-9-1", user=name, password="secret")), "brokers")
        assert (found.failed, found.exit) == (["broker.vhost"], REFUSED), found.text
    finally:
        rabbitmq.delete_user(name)


@pytest.mark.parametrize(("version", "said"), [("0-9-1", "low on memory"), ("0-8", "and says nothing")])
def test_an_alarm(look: Look, private_server: Callable[[str], Any], version: str, said: str) -> None:
    server = private_server(serving("rabbitmq-tls", version))
    server.memory_alarm(True)
    try:
        assert wait_until(lambda: bool(server.api("GET", "nodes")[0].get("mem_alarm")), 20)
        found = look(broker(server.url(version)), "brokers", within=2.0)
        finding = found.one("broker.blocked")
        assert finding.what.startswith("it takes no publishes now")
        assert said in finding.what
        assert (found.failed, found.exit) == (["broker.blocked"], UNREACHABLE)
    finally:
        server.memory_alarm(False)


def test_a_broker_that_hangs(look: Look, tls: Any) -> None:
    tls.pause()
    began = time.monotonic()
    try:
        found = look(broker(tls.url("0-9-1")), "brokers", within=1.0)
    finally:
        tls.resume()
    assert found.failed == ["broker.protocol"], found.text
    assert time.monotonic() - began < 30


async def test_looking_does_not_disturb_who_works(look: Look, rabbitmq: RabbitMQ, unique_name: Name) -> None:
    """Beside a gateway's own connections, as the same user."""
    queue = unique_name("busy")
    upstream = Upstream("busy", BrokerSettings(url=rabbitmq.url("0-9-1")))
    await upstream.start()
    try:
        assert await upstream.wait_up(30)
        await upstream.declare_queue(queue)
        text = broker(rabbitmq.url("0-9-1")) + f'[subscriptions.s]\nbroker = "orders"\nqueue = "{queue}"\n'
        found = await asyncio.to_thread(look, text, "brokers")
        assert found.failed == [], found.text
        assert (await upstream.query_queue(queue)).message_count == 0
        assert upstream.status().reason == ""
    finally:
        await upstream.close(1.0)
