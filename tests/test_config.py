"""The configuration file, the environment and the options, and what is wrong with each."""

from pathlib import Path

import pytest

from gateway.config import BrokerUrl, Config, load, parse_broker_url
from gateway.errors import ConfigurationError


def write(folder: Path, text: str) -> Path:
    path = folder / "gateway.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_there_are_defaults() -> None:
    config = load(None, {})
    assert config == Config()
    assert (config.http.port, config.ops.port, config.embedded.port) == (8080, 8081, 5670)


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[http]\nport = 1\n[ops]\nport = 2\n[embedded]\nport = 3\n")
    config = load(
        path, {"GATEWAY_OPS_PORT": "20", "GATEWAY_AMQP_PORT": "30"}, {"embedded.port": 300, "http.port": None}
    )
    assert (config.http.port, config.ops.port, config.embedded.port) == (1, 20, 300)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nprot = 1", "prot"),
        ("[http]\nport = 70000", r": http\.port: expected an integer <= 65535, got 70000"),
        ("[http]\nport = 'x'", r": http\.port: expected an integer, got a string"),
        ("what", "Expected .=. after a key"),
        ("[brokers.b]\nurl = 'http://x'", "brokers.b.url.*http"),
        ("[brokers.b]\n", "url"),
        ("[brokers.b]\nurl = 'amqp://x'\nredirect_hosts = ['a/b']", "brokers.b.redirect_hosts: host 'a/b'"),
        (
            "[brokers]\na = {url = 'amqp://x'}\nb = {url = 'amqp://x', required = 'yes'}",
            r": brokers\.b\.required: expected true or false, got a string",
        ),
        (
            "[brokers]\na = {url = 'amqp://x'}\nb = {url = 'amqp://x', hartbeat = 3}",
            r": brokers\.b\.hartbeat: there is no such setting; did you mean heartbeat\? There are url, ",
        ),
        ("[brokers.'a b']\nurl = 'amqp://x'", "brokers"),
        ("[brokers.b]\nurl = 'amqp://x'\nheartbeat = inf", "brokers.b.heartbeat is inf, not a finite number"),
        ("[ledger]\nkey_retention = inf", "ledger.key_retention is inf, not a finite number"),
        ("[endpoints.e]\nurl = 'https://x/'\nschedule = [0.0, nan]", r"endpoints.e.schedule\[1\] is nan, not a finite"),
        (
            "[brokers.b]\nurl = 'amqp://x'\nreconnect_min = 60.0",
            "brokers.b.reconnect_max is 30, less than reconnect_min = 60",
        ),
        (
            "[embedded]\nmessage_max = 134217728\nqueue_memory = 67108864",
            "embedded.message_max is 134217728, more than embedded.queue_memory = 67108864. Raise",
        ),
        ("[http.tls]\nclient_ca_file = 'ca.pem'", "http.tls.client_ca_file is set, and http.tls.cert_file is not"),
        ("[http.tls]\nkey_file = 'key.pem'", "http.tls.key_file is set, and http.tls.cert_file is not"),
        (
            "[http.tls]\ncert_file = 'cert.pem'\nclients = 'required'",
            "http.tls.clients is 'required', and http.tls.client_ca_file does not say",
        ),
        ("[embedded.tls]\nca_file = 'ca.pem'", "embedded.tls.ca_file is set, and embedded.tls.cert_file is not"),
        ("[embedded]\nenabled = true\nusers = []", "embedded.users is empty: nobody could log in"),
        (
            "[[api_keys]]\nname = 'jwt:shop'\nkey = 'x'",
            "api_keys: name 'jwt:shop': jwt: begins clients with tokens only",
        ),
        (
            "[[access.certificates]]\nclient = 'jwt:shop'\nname = 'CN:shop'\nscopes = ['history']",
            "access.certificates: client 'jwt:shop': jwt:",
        ),
        ("[subscriptions.s]\nbroker = 'none'\nqueue = 'q'", "subscriptions.s.broker.*none"),
        ("[taps.t]\nbroker = 'none'\nqueue = 'q'", "taps.t.broker.*none"),
        (
            "[brokers]\nb = {url = 'amqp://x'}\n"
            "[subscriptions.s]\nbroker = 'b'\nqueue = 'q'\ndead_letter_broker = 'none'",
            "subscriptions.s.dead_letter_broker: there is no broker 'none'",
        ),
        (
            f"[brokers]\nb = {{url = 'amqp://x'}}\n[subscriptions.s]\nbroker = 'b'\nqueue = '{'é' * 128}'",
            "subscriptions.s.queue: it has 256 octets, the limit is 255",
        ),
        (
            f"[taps.t]\nbroker = 'b'\nqueue = 'q'\ndead_letter_routing_key = '{'k' * 256}'",
            "taps.t.dead_letter_routing_key: it has 256 octets, the limit is 255",
        ),
        (
            "[bridges.b]\nsource = {broker = 'b', queue = 'q'}\n"
            f"target = {{broker = 'b', routing_key = '{'k' * 256}'}}",
            "bridges.b.target.routing_key: it has 256 octets, the limit is 255",
        ),
        ("[taps.t]\nbroker = 'b'", "taps.t.queue: neither queue nor exchange"),
        ("[taps.t]\nbroker = 'b'\nqueue = 'q'\nbinding_key = 'k'", "taps.t.exchange: binding_key"),
        ("[taps.t]\nbroker = 'b'\nqueue = 'q'\ndead_letter_routing_key = 'q'", "taps.t.dead_letter_routing_key: 'q'"),
        ("[taps.t]\nbroker = 'b'\nqueue = 'q'\nuntil = 'noon'", "until"),
        (
            "[retention]\nlog_octets = 2_000_000\n[taps.t]\nbroker = 'b'\nqueue = 'q'\nlog_octets = 2_000_000",
            "taps.t.log_octets: 2000000 is not less than retention.log_octets = 2000000",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(write(tmp_path, text), {})


@pytest.mark.parametrize(
    ("name", "text"), [("gateway.toml", "[http]\r\nport = 1\r\n"), ("gateway.json", '{"http": {"port": 1}}')]
)
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8-sig"))
    assert load(path, {}).http.port == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent.toml: No such file"):
        load(tmp_path / "absent.toml", {})


def test_a_port_in_the_environment_that_is_no_number() -> None:
    with pytest.raises(ConfigurationError, match=r"http.port"):
        load(None, {"GATEWAY_HTTP_PORT": "many"})


def test_a_variable_that_does_not_fit_is_named_and_not_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "log_level = 'info'")
    said = r"^GATEWAY_LOG_LEVEL: '' is not one of debug, info, warning, error \(log_level\)$"
    with pytest.raises(ConfigurationError, match=said):
        load(path, {"GATEWAY_LOG_LEVEL": ""})
    links = {"GATEWAY_HTTP_PORT": "tcp://10.0.0.1:8080"}  # as Kubernetes makes it
    assert load(path, links, {"http.port": 1}).http.port == 1


URL = BrokerUrl(secure=False, host="h", port=5672, user="guest", password="guest", virtual_host="/", version="auto")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h", {}),
        ("amqp://h/", {}),
        ("amqp://h/%2F", {}),
        ("amqp://h/%2Fmemory", {"virtual_host": "/memory"}),
        ("amqp://h/a%25b", {"virtual_host": "a%b"}),
        ("amqps://h", {"secure": True, "port": 5671}),
        ("amqp://h?version=0-10&dialect=transitional", {"version": "0-10", "dialect": "transitional"}),
        (
            "amqp://u%40x:p%3A%2F@h:1/v?version=0-10",
            {"user": "u@x", "password": "p:/", "port": 1, "virtual_host": "v", "version": "0-10"},
        ),
        ("amqp://[::1]:7", {"host": "::1", "port": 7}),
        ("amqp://:@h", {"user": "", "password": ""}),
    ],
)
def test_broker_urls(url: str, expected: dict[str, object]) -> None:
    found = parse_broker_url(url)
    assert found == BrokerUrl(**{**{name: getattr(URL, name) for name in URL.__struct_fields__}, **expected})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h", "scheme is 'http'"),
        ("amqp://", "no host"),
        ("amqp://u:secret@h:99999", "(?i)port"),
        ("amqp://u:secret@h:0", "the port is 0, not 1 to 65535"),
        ("amqp://u:secret#1@h", "'#' are written %2F, %3F and %23"),
        ("amqp://u:secret/1@h", "'#' are written %2F, %3F and %23"),
        ("amqp://u:secret?1@h", "'#' are written %2F, %3F and %23"),
        ("amqp://u:secret\u2100@h", "non-ASCII text in user and password is percent-encoded"),
        ("amqp://u:secret@[h", "brackets are for an IPv6 address"),
        ("amqp://u:secret@h/a/b", "%2F"),
        ("amqp://u:secret@h/a#b", "%23"),
        ("amqp://u:secret@h?version=1.0", "version is '1.0'"),
        ("amqp://u:secret@h?verison=0-8", "unknown option 'verison'"),
        ("amqp://u:secret@h?version=0-8&dialect=transitional", "dialect is 'transitional'"),
        ("amqp://u:secret@h?version=0-10&dialect=qpid", "dialect is 'qpid'"),
    ],
)
def test_wrong_broker_urls_say_why_and_never_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        parse_broker_url(url)
    assert "secret" not in str(caught.value)


def test_the_example_configuration_is_right() -> None:
    config = load(Path(__file__).parent.parent / "deploy" / "gateway.toml", {})
    assert set(config.brokers) == {"orders-legacy", "settlement", "orders"}
    assert config.subscriptions["billing"].broker == "settlement"


def test_json_is_read_as_toml_is(tmp_path: Path) -> None:
    path = tmp_path / "gateway.json"
    path.write_text('{"role": "worker", "ledger": {"url": "postgresql://db/gateway"}, "http": {"port": 1}}')
    config = load(path, {})
    assert (config.role, config.ledger.url, config.http.port) == ("worker", "postgresql://db/gateway", 1)


@pytest.mark.parametrize("text", ["{", "[1]", '{"http": {"prot": 1}}', '{"role": "boss"}'])
def test_json_that_is_wrong_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gateway.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"gateway\.json: .+"):
        load(path, {})


def test_roles_and_addresses_from_the_environment() -> None:
    names = ("GATEWAY_HTTP_HOST", "GATEWAY_OPS_HOST", "GATEWAY_CLUSTER_HOST")
    config = load(None, {"GATEWAY_ROLE": "api", "GATEWAY_CLUSTER_PORT": "9470", **dict.fromkeys(names, "10.0.0.1")})
    assert (config.role, config.cluster.port) == ("api", 9470)
    assert {config.http.host, config.ops.host, config.cluster.host} == {"10.0.0.1"}
