"""What a client may still ask that its upstream takes no more: rewritten by one table, and counted.

A rule names the product and the releases that it is for. ``[fronts.NAME.rules]`` switches one off, or on for a release
that it is not for. The same rewrite applies whenever the same is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.amqp.operations import Consume, DeclareQueue, Operation, Recover
from gateway.amqp.protocol import VersionRules
from gateway.amqp.values import Table
from gateway.front.channels.target import QPID, RABBITMQ, Target

QUEUE_EXPIRES: Final = "x-expires"
ALTERNATE: Final = "alternate-exchange"
DEAD_LETTERS: Final = "x-dead-letter-exchange"
EXCLUSIVITY: Final = "qpid.exclusivity_policy"
LIFETIME: Final = "qpid.lifetime_policy"
ONE_CONSUMER: Final = "x-single-active-consumer"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite."""

    name: str
    """As settings, metrics and the API name it."""
    product: str
    """Empty: any."""
    since: tuple[int, int]
    """The first release line that it is for."""
    operation: type[Operation]
    what: str
    """What clients ask, as a clause."""
    becomes: str
    """What the upstream gets instead."""
    applies: Callable[[Any, Target, VersionRules], bool]
    """Asked with what the client's version and product expect."""
    rewrite: Callable[[Any, int], Any]
    """The operation and the expiry of queues that were transient, in milliseconds -> what is sent."""

    def is_for(self, target: Target) -> bool:
        """Whether the rule is meant for that upstream."""
        return self.product in ("", target.product) and self.since <= target.release


def _without(name: str) -> Callable[[DeclareQueue, int], DeclareQueue]:
    def rewrite(request: DeclareQueue, expires: int) -> DeclareQueue:
        return replace(request, arguments={key: value for key, value in request.arguments.items() if key != name})

    return rewrite


def _durable(request: DeclareQueue, expires: int) -> DeclareQueue:
    arguments: Table = dict(request.arguments)
    if expires:
        arguments.setdefault(QUEUE_EXPIRES, expires)
    return replace(request, durable=True, arguments=arguments)


def _without_ha(request: DeclareQueue, expires: int) -> DeclareQueue:
    return replace(
        request, arguments={key: value for key, value in request.arguments.items() if not key.startswith("x-ha-")}
    )


def _of_connection(request: DeclareQueue, expires: int) -> DeclareQueue:
    arguments: Table = {**request.arguments, EXCLUSIVITY: "CONNECTION", LIFETIME: "DELETE_ON_CONNECTION_CLOSE"}
    return replace(request, exclusive=False, durable=False, auto_delete=False, arguments=arguments)


def _of_subscription(request: DeclareQueue, expires: int) -> DeclareQueue:
    # A queue that somebody else has made has no such argument, and is not taken for this one.
    return replace(request, exclusive=False, arguments={**request.arguments, ONE_CONSUMER: True})


def _dead_letters(request: DeclareQueue, expires: int) -> DeclareQueue:
    arguments: Table = dict(request.arguments)
    arguments.setdefault(DEAD_LETTERS, arguments.pop(ALTERNATE))
    return replace(request, arguments=arguments)


def _declares(request: DeclareQueue) -> bool:
    return not request.passive


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "transient_queue", RABBITMQ, (4, 3), DeclareQueue,
        "a queue that is neither durable nor exclusive", "a durable one with `x-expires`",
        lambda request, target, client: _declares(request) and not request.durable and not request.exclusive,
        _durable,
    ),
    Rule(
        "queue_version", RABBITMQ, (4, 3), DeclareQueue,
        "a queue with `x-queue-version`", "one without it",
        lambda request, target, client: _declares(request) and "x-queue-version" in request.arguments,
        _without("x-queue-version"),
    ),
    Rule(
        "queue_mode", RABBITMQ, (4, 0), DeclareQueue,
        "a queue with `x-queue-mode`", "one without it",
        lambda request, target, client: _declares(request) and "x-queue-mode" in request.arguments,
        _without("x-queue-mode"),
    ),
    Rule(
        "mirrors", RABBITMQ, (4, 0), DeclareQueue,
        "a queue with `x-ha-*`", "one without these arguments",
        lambda request, target, client: _declares(request)
        and any(name.startswith("x-ha-") for name in request.arguments),
        _without_ha,
    ),
    Rule(
        "quorum_priority", RABBITMQ, (3, 8), DeclareQueue,
        "a quorum queue with `x-max-priority`", "one without it",
        lambda request, target, client: _declares(request)
        and request.arguments.get("x-queue-type") == "quorum"
        and "x-max-priority" in request.arguments,
        _without("x-max-priority"),
    ),
    Rule(
        "alternate_exchange", RABBITMQ, (0, 0), DeclareQueue,
        "a queue with an alternate exchange (0-10)", "one with `x-dead-letter-exchange`",
        lambda request, target, client: _declares(request) and ALTERNATE in request.arguments,
        _dead_letters,
    ),
    Rule(
        "no_local", RABBITMQ, (0, 0), Consume,
        "a consumer with `no_local`", "one without it, except on the client's own queue: RabbitMQ ignores it",
        lambda request, target, client: request.no_local,
        lambda request, expires: replace(request, no_local=False),
    ),
    Rule(
        "recover", RABBITMQ, (0, 0), Recover,
        "`basic.recover` without requeue", "one with requeue: other consumers of the queue may get the messages",
        lambda request, target, client: not request.requeue,
        lambda request, expires: replace(request, requeue=True),
    ),
    Rule(
        "durable_subscription", "", (0, 0), DeclareQueue,
        "a durable exclusive queue, where the client expects it to stay: 0-8, 0-9, 0-10, and Qpid's clients",
        "one that is not exclusive, with `x-single-active-consumer`; the front keeps it for the client while that is "
        "connected",
        lambda request, target, client: _declares(request)
        and request.exclusive
        and request.durable
        and not request.auto_delete
        and client.durable_exclusive_stays,
        _of_subscription,
    ),
    Rule(
        "exclusive_queue", QPID, (0, 0), DeclareQueue,
        "an exclusive queue, where the upstream speaks 0-10",
        "a queue of the connection (`qpid.exclusivity_policy`, `qpid.lifetime_policy`)",
        lambda request, target, client: _declares(request) and request.exclusive and target.is_native,
        _of_connection,
    ),
)  # fmt: skip
"""Every rewrite."""
RULE_NAMES: Final = tuple(rule.name for rule in RULES)


def rules_for(target: Target, switches: Mapping[str, str]) -> Mapping[type[Operation], tuple[Rule, ...]]:
    """Return the rules that count for an upstream, by operation. ``switches``: name -> ``on`` or ``off``."""
    found: dict[type[Operation], tuple[Rule, ...]] = {}
    for rule in RULES:
        switch = switches.get(rule.name, "")
        if switch == "on" or (switch != "off" and rule.is_for(target)):
            found[rule.operation] = (*found.get(rule.operation, ()), rule)
    return found
