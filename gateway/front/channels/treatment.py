"""What becomes of each operation of a client, in one table.

``passed``: the upstream is asked the same. ``mapped``: it is asked the same with other names, numbers or settings.
``emulated``: the front does it. ``refused``: nobody can. The client gets a code of the specification and a sentence;
nothing of the operation was done. Which of these depends on what the upstream can do (:class:`Target`), so a pair of
versions follows from the capabilities of the two products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gateway.amqp import operations
from gateway.front.channels.refusals import refused
from gateway.front.channels.target import QPID, Target


class Kind(Enum):
    """What is done with an operation."""

    PASSED = "passed"
    MAPPED = "mapped"
    EMULATED = "emulated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Where an operation is refused."""

    when: Callable[[Any, Target], bool]
    code: int
    text: str
    where: str
    """The same as ``when``, in words."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """One row."""

    kind: Kind
    how: str
    refusals: tuple[Refusal, ...] = ()


_EXCHANGE_TYPES: Final = frozenset({"direct", "fanout", "topic", "headers"})
_QPID_ARGUMENTS: Final = ("x-qpid-", "x-single-active-consumer")
"""How the arguments of queues begin that Broker-J knows, of those that begin with ``x-``."""
SELECTOR: Final = "x-filter-jms-selector"
"""Argument of a consumer that wants some of the messages only."""
NO_CONSUME: Final = "x-filter-no-consume"
"""Argument of a consumer of Qpid's classic clients that browses."""

_NO_BINDINGS: Final = Refusal(
    lambda request, target: not target.capabilities.exchange_bindings,
    540, "exchange.bind: the broker behind this gateway does not bind exchanges to exchanges",
    "the upstream does not bind exchanges to exchanges",
)  # fmt: skip
_DISTRIBUTED: Final = Refusal(
    lambda request, target: True,
    540, "dtx: transactions over several brokers do not pass a front",
    "always",
)  # fmt: skip


def _unknown_to_qpid(request: operations.DeclareQueue, target: Target) -> bool:
    if request.passive or target.product != QPID or target.is_native:
        return False
    return any(name.startswith("x-") and not name.startswith(_QPID_ARGUMENTS) for name in request.arguments)


def _unknown_type(request: operations.DeclareExchange, target: Target) -> bool:
    return not request.passive and request.type not in _EXCHANGE_TYPES and not request.type.startswith("x-")


def _default_at_qpid(request: operations.DeclareExchange, target: Target) -> bool:
    if request.exchange or target.product != QPID or target.is_native:
        return False
    return request.passive or request.type != "direct"


def _browses(request: operations.Consume) -> bool:
    return not request.acquired or bool(request.arguments.get(NO_CONSUME))


TREATMENTS: Final[Mapping[type[operations.Operation], Treatment]] = {
    operations.OpenChannel: Treatment(
        Kind.EMULATED, "answered at once; the upstream's channel is opened with the first request that needs one"
    ),
    operations.CloseChannel: Treatment(Kind.MAPPED, "behind the confirms of what was published on it"),
    operations.Flow: Treatment(Kind.EMULATED, "deliveries wait at the front, within the prefetch"),
    operations.DeclareExchange: Treatment(
        Kind.PASSED, "as it is",
        (
            Refusal(
                _unknown_type, 503, "unknown exchange type",
                "the type is not direct, fanout, topic, headers or `x-…`: another one may cost the upstream connection",
            ),
            Refusal(
                lambda request, target: request.type == "x-delayed-message" and not request.passive,
                540, "x-delayed-message: this gateway does not delay messages yet",
                "the type is `x-delayed-message`",
            ),
            Refusal(
                _default_at_qpid, 403, "operation not permitted on the default exchange",
                "it is the default exchange, passively or with another type, and the upstream is Broker-J in a classic "
                "version, which would end the connection over it (530)",
            ),
        ),
    ),
    operations.DeleteExchange: Treatment(Kind.PASSED, "as it is"),
    operations.BindExchange: Treatment(Kind.PASSED, "as it is", (_NO_BINDINGS,)),
    operations.UnbindExchange: Treatment(Kind.PASSED, "as it is", (_NO_BINDINGS,)),
    operations.QueryExchange: Treatment(Kind.MAPPED, "asked on a channel of its own where a 404 costs the channel"),
    operations.DeclareQueue: Treatment(
        Kind.MAPPED, "the front makes the names that a server makes; rules rewrite settings",
        (
            Refusal(
                _unknown_to_qpid, 406, "this broker has no such queue arguments: only x-qpid-… and "
                "x-single-active-consumer begin with x-",
                "it has arguments of RabbitMQ's, and the upstream is Broker-J in a classic version, which would end "
                "the connection over them (542)",
            ),
        ),
    ),
    operations.QueryQueue: Treatment(Kind.MAPPED, "asked on a channel of its own where a 404 costs the channel"),
    operations.BindQueue: Treatment(Kind.MAPPED, "an empty name becomes that of the queue declared last"),
    operations.UnbindQueue: Treatment(
        Kind.MAPPED, "an empty name becomes that of the queue declared last",
        (
            Refusal(
                lambda request, target: not target.capabilities.unbind_queue,
                540, "queue.unbind: the broker behind this gateway has no such thing",
                "the upstream cannot unbind",
            ),
        ),
    ),
    operations.QueryBinding: Treatment(
        Kind.PASSED,
        "as it is; where the upstream does not tell, the client hears whether exchange and queue are there, and of no "
        "binding but that of the default exchange, so it binds again",
    ),
    operations.PurgeQueue: Treatment(Kind.MAPPED, "an empty name becomes that of the queue declared last"),
    operations.DeleteQueue: Treatment(Kind.MAPPED, "an empty name becomes that of the queue declared last"),
    operations.SelectConfirm: Treatment(
        Kind.EMULATED, "answered by the front, which asks the upstream for confirms with the first publish"
    ),
    operations.Publish: Treatment(
        Kind.MAPPED, "always with the upstream's confirm; the client's comes behind it, if it has asked",
        (
            Refusal(
                lambda request, target: request.immediate and target.product == "rabbitmq",
                540, "immediate=true",
                "`immediate`, and the upstream is RabbitMQ",
            ),
        ),
    ),
    operations.Qos: Treatment(
        Kind.EMULATED, "the front counts, for a consumer or the whole channel; the upstream's prefetch is never more",
        (
            Refusal(
                lambda request, target: request.prefetch_size > 0,
                540, "prefetch_size!=0",
                "a prefetch size",
            ),
        ),
    ),
    operations.Consume: Treatment(
        Kind.MAPPED, "always acknowledged: without acknowledgement the front does that when it writes the message",
        (
            Refusal(
                lambda request, target: bool(request.arguments.get(SELECTOR)) and not target.capabilities.browse,
                540, "a selector: the broker behind this gateway would ignore it",
                "it has a selector, the upstream ignores those, and the queue is not the client's own exclusive one",
            ),
            Refusal(
                lambda request, target: _browses(request) and not target.capabilities.browse,
                540, "a consumer that does not acquire: the broker behind this gateway cannot browse",
                "it browses, and the upstream cannot",
            ),
            Refusal(
                lambda request, target: request.acquired and _browses(request) and target.is_native,
                540, "a queue browser: the broker behind this gateway is spoken to in 0-10, which tells no end of a "
                "queue",
                "it browses as Qpid's classic clients do, and the upstream speaks 0-10",
            ),
            Refusal(
                lambda request, target: request.no_local,
                540, "no_local: clients of this gateway share connections to the broker, which would take others' "
                "messages for local",
                "it has `no_local`, no rule rewrites that, and the queue is not the client's own exclusive one",
            ),
        ),
    ),
    operations.Credit: Treatment(Kind.EMULATED, "deliveries wait at the front, within the prefetch"),
    operations.Cancel: Treatment(Kind.MAPPED, "what waits at the front for it goes back to its queue"),
    operations.Get: Treatment(Kind.MAPPED, "always acknowledged, as for consumers"),
    operations.Settle: Treatment(
        Kind.MAPPED, "delivery numbers of a lost upstream connection are passed over: the messages come again"
    ),
    operations.Acquire: Treatment(
        Kind.REFUSED, "", (
            Refusal(
                lambda request, target: True,
                540, "message.acquire: consumers of this gateway do not browse",
                "always",
            ),
        ),
    ),
    operations.Resume: Treatment(
        Kind.REFUSED, "", (
            Refusal(
                lambda request, target: True,
                540, "message.resume: this gateway keeps no parts of messages",
                "always",
            ),
        ),
    ),
    operations.Recover: Treatment(
        Kind.MAPPED, "delivery numbers begin behind it",
        (
            Refusal(
                lambda request, target: not request.requeue and not target.recover_without_requeue,
                540, "basic.recover without requeue: the broker behind this gateway has no such thing",
                "without requeue, and the upstream has no such thing",
            ),
        ),
    ),
    operations.TxSelect: Treatment(
        Kind.PASSED, "on a fresh upstream channel where the old one confirms",
    ),
    operations.TxCommit: Treatment(Kind.PASSED, "what follows waits for its end"),
    operations.TxRollback: Treatment(Kind.PASSED, "what follows waits for its end"),
    **dict.fromkeys(
        (
            operations.DtxSelect, operations.DtxStart, operations.DtxEnd, operations.DtxPrepare, operations.DtxCommit,
            operations.DtxRollback, operations.DtxForget, operations.DtxRecover, operations.DtxSetTimeout,
            operations.DtxGetTimeout,
        ),
        Treatment(Kind.REFUSED, "", (_DISTRIBUTED,)),
    ),
}  # fmt: skip
"""Every operation that a client may send on a channel."""


def check(request: Any, target: Target) -> None:
    """Raise a :class:`~gateway.errors.RemoteError` for what the upstream cannot do."""
    for refusal in TREATMENTS[type(request)].refusals:
        if refusal.when(request, target):
            detail = f"{refusal.text} '{request.type}'" if refusal.code == 503 else refusal.text
            raise refused(refusal.code, detail)
