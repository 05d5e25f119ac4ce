"""The tables of a front: treatments, rules, rights, and what is refused with which words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gateway.access.scopes import principal_of
from gateway.amqp import operations
from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    BindQueue,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Get,
    Publish,
    PurgeQueue,
    Qos,
    Recover,
    Request,
    UnbindQueue,
)
from gateway.config import FrontSettings, FrontTls, FrontUser, check_front
from gateway.errors import ConfigurationError, EncodeError, LimitExceeded, RemoteError, StateError, Unsupported
from gateway.front import rights
from gateway.front.channels import treatment
from gateway.front.channels.channel import HANDLERS
from gateway.front.channels.messages import checked, copies, marked
from gateway.front.channels.refusals import refusal_of
from gateway.front.channels.rules import RULES, rules_for
from gateway.front.channels.target import QPID, RABBITMQ, Target, target_of
from gateway.front.channels.topology import Topology
from gateway.front.fronts import check_fronts
from gateway.session import Capabilities
from gateway.versions import protocol_of, version_named
from tests.front.fronts import ADMIN

NEW = Target(RABBITMQ, (4, 3))
OLD = Target(RABBITMQ, (3, 10))


def rewritten(request: Any, target: Target, version: str = "0-9-1", **switches: str) -> tuple[Any, list[str]]:
    names = []
    for rule in rules_for(target, switches).get(type(request), ()):
        if rule.applies(request, target, protocol_of(version_named(version)).rules):
            request = rule.rewrite(request, 60_000)
            names.append(rule.name)
    return request, names


def test_every_operation_of_a_client_has_a_row_and_a_handler() -> None:
    requests = {
        each
        for each in vars(operations).values()
        if isinstance(each, type) and issubclass(each, Request) and each is not Request
    }
    elsewhere = {operations.Close, operations.UpdateSecret, operations.Detach}  # the session's own, or a client's
    assert requests - elsewhere <= treatment.TREATMENTS.keys()
    assert treatment.TREATMENTS.keys() <= HANDLERS.keys()


def test_a_transient_queue_becomes_durable_where_it_must() -> None:
    request = DeclareQueue(1, "q")
    assert rewritten(request, OLD) == (request, [])
    assert rewritten(request, NEW) == (
        DeclareQueue(1, "q", durable=True, arguments={"x-expires": 60_000}),
        ["transient_queue"],
    )
    assert rewritten(request, NEW, transient_queue="off") == (request, [])
    assert rewritten(request, OLD, transient_queue="on")[1] == ["transient_queue"]
    for other in (DeclareQueue(1, "q", exclusive=True), DeclareQueue(1, "q", passive=True)):
        assert rewritten(other, NEW) == (other, [])
    kept = DeclareQueue(1, "q", arguments={"x-expires": 5})
    assert rewritten(kept, NEW)[0].arguments == {"x-expires": 5}


def test_arguments_that_are_refused_today_are_left_out() -> None:
    arguments: Any = {
        "x-queue-version": 1, "x-queue-mode": "lazy", "x-ha-policy": "all", "x-max-priority": 5,
        "x-queue-type": "quorum", "x-max-length": 3,
    }  # fmt: skip
    request, names = rewritten(DeclareQueue(1, "q", durable=True, arguments=arguments), NEW)
    assert request.arguments == {"x-queue-type": "quorum", "x-max-length": 3}
    assert names == ["queue_version", "queue_mode", "mirrors", "quorum_priority"]


def test_other_rewrites() -> None:
    assert rewritten(Consume(1, "q", no_local=True), OLD) == (Consume(1, "q"), ["no_local"])
    assert rewritten(Recover(1, requeue=False), OLD) == (Recover(1, requeue=True), ["recover"])
    assert rewritten(Recover(1, requeue=False), OLD, recover="off") == (Recover(1, requeue=False), [])
    assert rewritten(Recover(1, requeue=False), Target(QPID)) == (Recover(1, requeue=False), [])
    request, _ = rewritten(DeclareQueue(1, "q", durable=True, arguments={"alternate-exchange": "dead"}), OLD)
    assert request.arguments == {"x-dead-letter-exchange": "dead"}
    native = Target(QPID, (9, 2), is_native=True)
    request, names = rewritten(DeclareQueue(1, "q", exclusive=True), native)
    assert names == ["exclusive_queue"]
    assert not request.exclusive
    assert request.arguments["qpid.exclusivity_policy"] == "CONNECTION"
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("target", [NEW, Target(QPID), Target(QPID, (9, 2), is_native=True)])
def test_a_durable_subscription_stays_where_the_client_expects_it(target: Target) -> None:
    request = DeclareQueue(1, "q", durable=True, exclusive=True)
    for version in ("0-8", "0-9", "0-10"):
        sent, names = rewritten(request, target, version)
        assert names == ["durable_subscription"]
        assert sent == DeclareQueue(1, "q", durable=True, arguments={"x-single-active-consumer": True})
    for other in (
        replace(request, auto_delete=True), replace(request, durable=False), replace(request, exclusive=False),
    ):  # fmt: skip
        assert "durable_subscription" not in rewritten(other, target, "0-8")[1]
    assert "durable_subscription" not in rewritten(request, target)[1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Publish(1, "", "q", Message(), immediate=True), 540),
        (Qos(1, 1, prefetch_size=1), 540),
        (Recover(1, requeue=False), 540),
        (Consume(1, "q", acquired=False), 540),
        (Consume(1, "q", arguments={"x-filter-no-consume": True}), 540),
        (Consume(1, "q", no_local=True), 540),
        (Consume(1, "q", arguments={"x-filter-jms-selector": "a = 1"}), 540),
        (DeclareExchange(1, "e", "strange"), 503),
        (DeclareExchange(1, "e", "x-delayed-message"), 540),
        (operations.BindExchange(1, "a", "b"), 540),
        (operations.Acquire(1), 540),
        (operations.DtxSelect(1), 540),
    ],
)
def test_what_would_cost_the_upstream_connection_is_refused_first(request_: Any, code: int) -> None:
    with pytest.raises(RemoteError) as caught:
        treatment.check(request_, NEW)
    assert caught.value.reply_code == code
    assert " - " in caught.value.reply_text


def test_the_default_exchange_is_not_asked_for_where_that_costs_the_connection() -> None:
    for request in (DeclareExchange(1, "", passive=True), DeclareExchange(1, "", "topic")):
        with pytest.raises(RemoteError, match="403 ACCESS_REFUSED - operation not permitted on the default exchange"):
            treatment.check(request, Target(QPID))
        for target in (NEW, Target(QPID, is_native=True)):
            treatment.check(request, target)
    for request in (DeclareExchange(1, "e", passive=True), DeclareExchange(1, "")):
        treatment.check(request, Target(QPID))


def test_what_the_upstream_can_do_is_passed() -> None:
    treatment.check(DeclareExchange(1, "e", "x-consistent-hash"), NEW)
    treatment.check(DeclareExchange(1, "e", "", passive=True), NEW)
    treatment.check(Publish(1, "", "q", Message(), immediate=True), Target(QPID))
    browsing = Consume(1, "q", acquired=False)
    of_jms = Consume(1, "q", arguments={"x-filter-no-consume": True})
    for native in (False, True):
        treatment.check(browsing, Target(QPID, is_native=native, capabilities=Capabilities(browse=True)))
    treatment.check(of_jms, Target(QPID, capabilities=Capabilities(browse=True)))
    with pytest.raises(RemoteError, match="tells no end of a queue"):
        treatment.check(of_jms, Target(QPID, is_native=True, capabilities=Capabilities(browse=True)))


def test_rights() -> None:
    user = principal_of("billing", ["publish:b/invoices", "consume:b/orders", "route:b/topics/a.*"])

    def missing(request: Any, *own: str) -> str:
        try:
            rights.check(request, user, "b", own)
        except RemoteError as error:
            return error.reply_text.rpartition(" ")[2] if error.reply_code == 403 else str(error)
        return ""

    assert not missing(Publish(1, "invoices", "k", Message()))
    assert missing(Publish(1, "", "k", Message())) == "publish:b/amq.default"
    assert not missing(Publish(1, "topics", "a.b", Message()))
    assert missing(Publish(1, "topics", "b.a", Message()))
    copied = Message(b"", Properties(headers={"CC": ["b.a"]}))
    assert missing(Publish(1, "topics", "a.b", copied))
    assert not missing(Consume(1, "orders"))
    assert missing(Get(1, "others")) == "consume:b/others"
    assert not missing(Get(1, "mine"), "mine")
    assert missing(DeclareQueue(1, "orders", durable=True)) == "broker:b"
    assert not missing(DeclareQueue(1, "orders", passive=True))
    assert not missing(DeclareQueue(1, "mine", exclusive=True))
    assert missing(DeclareQueue(1, "mine", exclusive=True, arguments={"x-dead-letter-exchange": "e"}))
    assert missing(PurgeQueue(1, "orders"))
    assert not missing(DeleteQueue(1, "mine"), "mine")
    assert missing(BindQueue(1, "mine", "invoices"), "mine") == "broker:b"
    assert missing(DeleteExchange(1, "invoices"))
    assert not missing(DeclareExchange(1, "invoices", passive=True))
    assert not missing(Qos(1, 1))
    rights.check(DeleteExchange(1, "any"), principal_of("root", ["admin"]), "b", ())


def test_messages() -> None:
    assert checked(Message(b"", Properties(user_id="me")), "me", True)
    with pytest.raises(RemoteError, match="user_id property set to 'you' but authenticated user was 'me'"):
        checked(Message(b"", Properties(user_id="you")), "me", True)
    assert sorted(copies(Message(b"", Properties(headers={"CC": ["a"], "BCC": ["b", 1]})))) == ["a", "b"]
    assert not list(copies(Message(b"", Properties(headers={"CC": "no list"}))))
    again = marked(Message(b"body", Properties(headers={"nan": math.nan}))).properties.headers
    assert again is not None
    assert again["x-gateway"] == {"resent": "1"}


def test_words_of_refusals() -> None:
    publish = Publish(1, "", "q", Message(), immediate=True)
    assert refusal_of(Unsupported("immediate: no"), publish).reply_text == "NOT_IMPLEMENTED - immediate=true"
    assert refusal_of(Unsupported("no such thing"), Qos(1)).reply_code == 540
    assert refusal_of(EncodeError("a header"), Qos(1)).reply_code == 406
    assert refusal_of(EncodeError("a header", 5_000), Qos(1)).reply_code == 311
    assert refusal_of(LimitExceeded("channels", "channel_max"), Qos(1)).reply_code == 506
    assert refusal_of(StateError("not now"), Qos(1)).reply_code == 406


def test_topology_keeps_what_a_broker_forgets() -> None:
    topology = Topology()
    for request in (
        DeclareQueue(1, "lasts", durable=True),
        BindQueue(1, "lasts", "amq.topic", "k"),
        DeclareQueue(1, "mine", exclusive=True, serial=7),
        DeclareExchange(1, "auto", auto_delete=True),
        BindQueue(1, "mine", "amq.topic", "k"),
        BindQueue(1, "mine", "auto", "k"),
        Qos(1),
    ):
        topology.note(request)
    kept = list(topology.requests())
    assert [type(each) for each in kept] == [DeclareExchange, DeclareQueue, BindQueue, BindQueue]
    assert not any(each.serial for each in kept)
    topology.note(UnbindQueue(1, "mine", "amq.topic", "k"))
    assert len(topology) == 3
    topology.note(DeleteExchange(1, "auto"))
    assert len(topology) == 1
    topology.note(DeleteQueue(1, "mine"))
    assert not len(topology)


def test_targets() -> None:
    rabbit = target_of(version_named("0-9-1"), Capabilities(product="RabbitMQ", product_version="4.0.5"))
    assert (rabbit.product, rabbit.release, rabbit.flow_from_client) == (RABBITMQ, (4, 0), False)
    qpid = target_of(version_named("0-10"), Capabilities(product="qpid", product_version="9.2.1"))
    assert (qpid.product, qpid.is_native) == (QPID, True)
    embedded = target_of(version_named("0-9-1"), Capabilities(product="AMQP Gateway embedded broker (Qpid)"))
    assert embedded.product == "other"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"broker": ""}, "broker: "),
        ({"virtual_hosts": {"/": "b"}}, "broker: "),
        ({"versions": ("0-7",)}, "versions: "),
        ({"users": ()}, "users: "),
        ({"users": (ADMIN, ADMIN)}, "users: "),
        ({"users": (FrontUser(name="a"),)}, "users.a.password: "),
        ({"users": (FrontUser(name="a", password="b", password_file="c"),)}, "users.a.password: "),
        ({"login": "pass"}, "users: "),
        ({"login": "pass", "users": (), "broker": "", "virtual_hosts": {"/": "b"}}, "virtual_hosts: "),
        ({"login": "pass", "users": (), "tls": FrontTls(cert_file="c", client_ca_file="a")}, "tls.client_ca_file: "),
        ({"tls": FrontTls(key_file="c")}, "tls.key_file: "),
        ({"tls": FrontTls(cert_file="c", clients="required")}, "tls.clients: "),
        ({"message_max": 2 << 20, "memory": 1 << 20}, "message_max: "),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    right: dict[str, Any] = {"broker": "b", "users": (ADMIN,)}
    assert check_front(FrontSettings(**right)) is None
    assert str(check_front(FrontSettings(**right | settings))).startswith(wrong)


def test_unknown_rules_and_scopes_are_told() -> None:
    settings = FrontSettings(broker="b", users=(ADMIN,), rules={"transient": "on"})
    with pytest.raises(ConfigurationError, match="there is no rule 'transient'; there are transient_queue"):
        check_fronts({"legacy": settings})
    settings = FrontSettings(broker="b", users=(FrontUser(name="a", password="b", scopes=("read",)),))
    with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.users\.a\.scopes: 'read' is none of publish:"):
        check_fronts({"legacy": settings})
