"""A virtual host: the names of exchanges and queues, what is bound to what, and where a message goes.

Nothing here knows of channels or sessions. Who asks is a :class:`Tenant`; what is refused is raised as a
:class:`~gateway.errors.RemoteError`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from gateway.broker import arguments as args
from gateway.broker.alarms import Alarms
from gateway.broker.consumers import Consumer
from gateway.broker.dead_letters import is_automatic_cycle, with_death
from gateway.broker.dtx import Branches
from gateway.broker.exchanges import EXCHANGE_TYPES, PREDECLARED, Binding, Destination, Exchange
from gateway.broker.queues import BATCH, Entry, Envelope, Memory, Queue, Tenant
from gateway.broker.refusals import inequivalent, locked, missing, refusal, title
from gateway.limits import BrokerLimits
from gateway.message import Message
from gateway.operations import (
    BindingFound,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    QueryBinding,
)
from gateway.values import Table


class DefaultExchange(Exchange):
    """The exchange without a name: every queue is bound to it by its own name, for as long as it is there."""

    type = "direct"

    def __init__(self, queues: dict[str, Queue]) -> None:
        super().__init__("", durable=True)
        self._queues = queues

    def match(self, routing_key: str, message: Message) -> Iterable[Destination]:
        queue = self._queues.get(routing_key)
        return () if queue is None else (queue,)


class _Matches:
    """What some bindings have of the key and the arguments of a question."""

    __slots__ = ("arguments", "bindings", "both", "key")

    def __init__(self) -> None:
        self.bindings = self.key = self.arguments = self.both = False

    def add(self, has_key: bool, has_arguments: bool) -> None:
        """Count one binding."""
        self.bindings = True
        self.key = self.key or has_key
        self.arguments = self.arguments or has_arguments
        self.both = self.both or (has_key and has_arguments)


ORPHANED = "orphaned"
"""Why a message of a deleted queue leaves it; it goes to the queue's alternate exchange (0-10) or nowhere."""


class VirtualHost:
    """Exchanges, queues and bindings under one name.

    Args:
        random_octets: for the names of queues that the server names.
        wall_clock: seconds since 1970, for ``x-death``.
    """

    def __init__(
        self,
        name: str,
        memory: Memory,
        limits: BrokerLimits,
        random_octets: Callable[[int], bytes],
        wall_clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.memory = memory
        self.limits = limits
        self.queues: dict[str, Queue] = {}
        self.default_exchange = DefaultExchange(self.queues)
        self.exchanges: dict[str, Exchange] = {"": self.default_exchange}
        for predeclared, kind in PREDECLARED.items():
            self.exchanges[predeclared] = kind(predeclared, durable=True)
        self.alarms: Alarms[Queue] = Alarms()
        self.branches = Branches(limits)
        self.consumers = 0
        self.dropped = 0
        """Dead letters that there was no memory for."""
        self._bindings = 0
        self._declared = 0
        self._dead: deque[tuple[Entry, str]] = deque()
        self._discarded: deque[Entry] = deque()
        self._late = False
        """Dead letters are left over, for :meth:`handle_timeout`."""
        self._random_octets = random_octets
        self._wall_clock = wall_clock

    def time(self) -> int:
        """Milliseconds since 1970."""
        return int(self._wall_clock() * 1000)

    def title(self, kind: str, name: str) -> str:
        """A queue or exchange as reply texts name it."""
        return title(kind, name, self.name)

    def fresh_name(self, prefix: str) -> str:
        """A name that nobody can guess."""
        return prefix + urlsafe_b64encode(self._random_octets(16)).rstrip(b"=").decode()

    # ----------------------------------------------------------------------------------------- exchanges

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name; 404 if there is none."""
        found = self.exchanges.get(name)
        if found is None:
            raise missing(self.title("exchange", name))
        return found

    def declare_exchange(self, request: DeclareExchange) -> Exchange:
        """exchange.declare; 403, 404, 406, 503."""
        name = request.exchange
        what = self.title("exchange", name)
        if not name:
            raise refusal(403, "operation not permitted on the default exchange")
        if request.passive:
            return self.exchange(name)
        kind = EXCHANGE_TYPES.get(request.type)
        if kind is None:
            raise refusal(503, f"unknown exchange type '{request.type}'")
        arguments = args.exchange_arguments(request.arguments, what)
        found = self.exchanges.get(name)
        if found is not None:
            for field, received, current in (
                ("type", kind.type, found.type),
                ("durable", request.durable, found.durable),
                ("auto_delete", request.auto_delete, found.auto_delete),
                ("internal", request.internal, found.internal),
            ):
                if received != current:
                    raise inequivalent(field, what, received, current)
            args.require_equal(arguments, found.arguments, args.EXCHANGE_ARGUMENTS, what)
            return found
        _check_name("exchange", name)
        if len(self.exchanges) >= self.limits.exchanges:
            raise refusal(506, f"cannot declare {what}: the limit of {self.limits.exchanges} exchanges is reached")
        self._charge(args.weight(name) + args.weight(request.arguments))
        self.exchanges[name] = found = kind(
            name,
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
            arguments=arguments,
            table=request.arguments,
        )
        return found

    def delete_exchange(self, request: DeleteExchange) -> None:
        """exchange.delete; what is not there counts as deleted."""
        name = request.exchange
        if not name:
            raise refusal(403, "operation not permitted on the default exchange")
        found = self.exchanges.get(name)
        if found is None:
            return
        if name.startswith("amq."):
            raise refusal(403, f"deletion of system {self.title('exchange', name)} not allowed")
        if request.if_unused and found.bindings:
            raise refusal(406, f"{self.title('exchange', name)} in use")
        self._drop_exchange(found)
        self._unbind([*found.bindings, *found.bindings_to])

    def _drop_exchange(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.name]
        self._declared -= args.weight(exchange.name) + args.weight(exchange.table)

    def _charge(self, octets: int) -> None:
        """Count what a client declares; 506 where it is too much in all."""
        if self._declared + octets > self.limits.declared_octets:
            limit = self.limits.declared_octets
            raise refusal(506, f"the limit of {limit} octets of names and arguments is reached")
        self._declared += octets

    # -------------------------------------------------------------------------------------------- queues

    def queue(self, name: str, tenant: Tenant) -> Queue:
        """The queue of that name; 404 if there is none, 405 if it is another connection's."""
        found = self.queues.get(name)
        if found is None:
            raise missing(self.title("queue", name))
        if found.exclusive and found.owner not in (None, tenant):
            raise locked(self.title("queue", name))
        return found

    def declare_queue(self, request: DeclareQueue, name: str, tenant: Tenant, now: float) -> Queue:
        """queue.declare; 403, 404, 405, 406."""
        if request.passive:
            found = self.queue(name, tenant)
            self.touch(found, now)
            return found
        if not name:
            name = self.fresh_name("amq.gen-")
        elif name.startswith("amq."):
            _check_name("queue", name)
        what = self.title("queue", name)
        arguments = args.queue_arguments(request.arguments, what)
        exclusive, auto_delete = request.exclusive, request.auto_delete
        if arguments.exclusivity is not None:
            exclusive = args.EXCLUSIVITY[arguments.exclusivity]
        if arguments.lifetime is not None:
            auto_delete = args.AUTO_DELETE[arguments.lifetime]
        if name in self.queues:
            found = self.queue(name, tenant)
            if found.exclusive != exclusive:
                raise locked(what)
            if found.durable != request.durable:
                raise inequivalent("durable", what, request.durable, found.durable)
            if found.auto_delete != auto_delete:
                raise inequivalent("auto_delete", what, auto_delete, found.auto_delete)
            args.require_equal(arguments, found.arguments, args.QUEUE_ARGUMENTS, what)
        else:
            if len(self.queues) >= self.limits.queues:
                raise refusal(506, f"cannot declare {what}: the limit of {self.limits.queues} queues is reached")
            self._charge(args.weight(name) + args.weight(request.arguments))
            found = self.queues[name] = Queue(
                name,
                self,
                durable=request.durable,
                auto_delete=auto_delete,
                arguments=arguments,
                table=request.arguments,
            )
            found.exclusive = exclusive
            stays = request.durable and (tenant.durable_exclusive_stays or arguments.lifetime == "PERMANENT")
            found.ends_with_owner = arguments.lifetime in args.ENDS_WITH_CONNECTION or (exclusive and not stays)
        if found.owner is None and (found.exclusive or found.ends_with_owner):
            found.owner = tenant
            tenant.owned[found] = None
        self.touch(found, now)
        return found

    def delete_queue(self, request: DeleteQueue, name: str, tenant: Tenant, now: float) -> int:
        """queue.delete: how many messages went with it; what is not there counts as deleted."""
        if name not in self.queues:
            return 0
        found = self.queue(name, tenant)
        what = self.title("queue", name)
        if request.if_unused and found.consumers:
            raise refusal(406, f"{what} in use")
        if request.if_empty and found.ready:
            raise refusal(406, f"{what} is not empty")
        return self.drop_queue(found, now)

    def drop_queue(self, queue: Queue, now: float) -> int:
        """Remove a queue with its messages, consumers and bindings; how many messages were ready."""
        queue.gone = True
        del self.queues[queue.name]
        self._declared -= args.weight(queue.name) + args.weight(queue.table)
        if queue.owner is not None:
            del queue.owner.owned[queue]
        self.alarms.clear(queue)
        self._unbind(queue.bindings_to)
        for consumer in list(queue.consumers):
            self.remove_consumer(consumer)
            consumer.channel.consumer_cancelled(consumer, now)
        if queue.arguments.alternate_exchange is None:
            return queue.purge()
        orphans = queue.clear()
        self._dead.extend((entry, ORPHANED) for entry in orphans)
        return len(orphans)

    def drop_tenant(self, tenant: Tenant, now: float) -> None:
        """The connection is gone: so are its exclusive queues, but for those that outlive it."""
        for queue in list(tenant.owned):
            if queue.ends_with_owner:
                self.drop_queue(queue, now)
            else:
                queue.owner = None
        tenant.owned.clear()

    def touch(self, queue: Queue, now: float) -> None:
        """The queue was used (``x-expires``)."""
        queue.used_at = now
        if queue.arguments.expires is not None:
            self.arm(queue)

    def arm(self, queue: Queue) -> None:
        """Set the queue's alarm for what expires next in it."""
        time = None if queue.gone else queue.next_alarm()
        if time is not None:
            self.alarms.set(queue, time)

    # ----------------------------------------------------------------------------------------- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """basic.consume; 403 where the queue or the consumer is exclusive."""
        queue, limits = consumer.queue, self.limits
        what = self.title("queue", queue.name)
        alone = consumer.exclusive or queue.arguments.exclusivity == "LINK"
        # One that is exclusive is the only one.
        if (queue.consumers and (alone or next(iter(queue.consumers)).exclusive)) or (
            consumer.exclusive and queue.arguments.single_active_consumer
        ):
            raise refusal(403, f"{what} in exclusive use")
        if self.consumers >= limits.consumers:
            raise refusal(506, f"cannot consume from {what}: the limit of {limits.consumers} consumers is reached")
        if consumer.selective and queue.selective >= limits.selective_consumers:
            most = f"{limits.selective_consumers} consumers that browse or select"
            raise refusal(506, f"cannot consume from {what}: the limit of {most} is reached")
        self._charge(consumer.weight)
        self.consumers += 1
        queue.add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer takes no more. Its queue may have to go: :meth:`unused`."""
        self.consumers -= 1
        self._declared -= consumer.weight
        consumer.queue.remove_consumer(consumer)

    def unused(self, queue: Queue, now: float) -> None:
        """A consumer is gone: so is an auto-delete queue that has no other."""
        if queue.consumers or queue.gone:
            return
        if queue.auto_delete:
            self.drop_queue(queue, now)
        else:
            self.touch(queue, now)

    # ------------------------------------------------------------------------------------------ bindings

    def bind(self, source: str, destination: Destination, routing_key: str, arguments: Table) -> None:
        """queue.bind and exchange.bind; the same binding twice is one."""
        exchange = self._bindable(source, destination)
        exchange.check_binding(routing_key, arguments)
        selector = args.binding_selector(arguments, self.title("binding", routing_key))
        binding = Binding(exchange, destination, routing_key, arguments, selector)
        if binding in exchange.bindings:
            return
        if self._bindings >= self.limits.bindings:
            raise refusal(506, f"the limit of {self.limits.bindings} bindings is reached")
        if exchange.tries(binding) and exchange.tried >= self.limits.tried_bindings:
            most = f"{self.limits.tried_bindings} bindings that every message is compared with"
            raise refusal(506, f"{self.title('exchange', source)}: the limit of {most} is reached")
        self._charge(binding.weight)
        exchange.add(binding)
        self._bindings += 1

    def unbind(self, source: str, destination: Destination | None, routing_key: str, arguments: Table | None) -> None:
        """queue.unbind and exchange.unbind; what is not there counts as unbound. ``arguments`` None: whatever
        they are."""
        if source not in self.exchanges or destination is None:
            return
        exchange = self._bindable(source, destination)
        if arguments is not None:
            self._unbind([Binding(exchange, destination, routing_key, arguments)])
            return
        self._unbind(
            [
                binding
                for binding in destination.bindings_to
                if binding.source is exchange and binding.routing_key == routing_key
            ]
        )

    def _bindable(self, source: str, destination: Destination) -> Exchange:
        exchange = self.exchange(source)
        if exchange is self.default_exchange or destination is self.default_exchange:
            raise refusal(403, "operation not permitted on the default exchange")
        return exchange

    def _unbind(self, bindings: Iterable[Binding]) -> None:
        """Remove bindings, and the auto-delete exchanges that lose their last one, and what led to those."""
        todo = deque(bindings)
        while todo:
            binding = todo.popleft()
            source = binding.source
            if not source.remove(binding):
                continue
            self._bindings -= 1
            self._declared -= binding.weight
            if source.auto_delete and not source.bindings and self.exchanges.get(source.name) is source:
                self._drop_exchange(source)
                todo.extend(source.bindings_to)

    def query_binding(self, request: QueryBinding) -> BindingFound:
        """exchange.bound of Qpid and of 0-10: what of the question exists."""
        exchange = self.exchanges.get(request.exchange)
        queue = self.queues.get(request.queue) if request.queue else None
        of_queue, of_all = _Matches(), _Matches()
        for destination, key, arguments in self._bindings_of(exchange):
            has_key = request.routing_key is None or key == request.routing_key
            has_arguments = request.arguments is None or arguments == request.arguments
            of_all.add(has_key, has_arguments)
            if not request.queue or destination is queue:
                of_queue.add(has_key, has_arguments)
        scope = of_queue if of_queue.bindings else of_all
        return BindingFound(
            request.channel,
            request.serial,
            request.serial,
            exchange_found=exchange is not None,
            queue_found=not request.queue or queue is not None,
            matched=of_queue.both,
            key_matched=scope.key or request.routing_key is None,
            # Where each has a binding and no binding has both, the arguments are those of another key.
            arguments_matched=(scope.arguments and (scope.both or not scope.key)) or request.arguments is None,
            queue_matched=of_queue.bindings or not request.queue,
        )

    def _bindings_of(self, exchange: Exchange | None) -> Iterator[tuple[Destination, str, Table]]:
        """Destination, key and arguments of each binding."""
        if exchange is self.default_exchange:
            for queue in self.queues.values():
                yield queue, queue.name, {}
        elif exchange is not None:
            for binding in exchange.bindings:
                yield binding.destination, binding.routing_key, binding.arguments

    # ------------------------------------------------------------------------------------------- routing

    def route(self, exchange: Exchange, routing_key: str, message: Message) -> list[Queue]:
        """The queues that a message published to ``exchange`` comes to, each once.

        An exchange that leads nowhere hands the message to its alternate exchange. Exchanges bound in a circle
        are visited once.
        """
        found = exchange.match(routing_key, message)
        if exchange.plain and (found or exchange.arguments.alternate_exchange is None):
            return list(found)  # type: ignore[arg-type]  # no exchange among them
        queues: dict[Queue, None] = {}
        visited = {exchange}
        todo = [(exchange, found)]
        while todo:
            current, found = todo.pop()
            if not found and current.arguments.alternate_exchange is not None:
                alternate = self.exchanges.get(current.arguments.alternate_exchange)
                found = () if alternate is None else (alternate,)
            for destination in found:
                if isinstance(destination, Queue):
                    queues[destination] = None
                elif isinstance(destination, Exchange) and destination not in visited:
                    visited.add(destination)
                    todo.append((destination, destination.match(routing_key, message)))
        return list(queues)

    # ------------------------------------------------------------------------------- death of messages

    def died(self, entry: Entry, reason: str) -> None:
        """An entry left its queue unconsumed; :meth:`bury` sees to it when the current request is done."""
        self._dead.append((entry, reason))

    def bury(self, now: float) -> None:
        """Send the dead to their dead-letter exchanges, and those who die of that. Many are buried a batch at a
        time, by :meth:`handle_timeout`: queues that feed each other must not hold up everybody else."""
        if self._dead and not self._late:
            self._bury(now)

    def _bury(self, now: float) -> None:
        dead, left = self._dead, BURIED_AT_ONCE
        while dead and left:
            left -= 1
            entry, reason = dead.popleft()
            if self.memory.exhausted:
                self.dropped += 1
            else:
                self._dead_letter(entry, reason, now)
            entry.drop()
        self._late = bool(dead)

    def discard(self, entries: deque[Entry]) -> None:
        """Drop what a purge has taken out of its queue: a batch now, the others by :meth:`handle_timeout`."""
        if self._discarded:
            self._discarded.extend(entries)
            return
        self._discarded = entries
        self._drop_batch()

    def _drop_batch(self) -> None:
        discarded = self._discarded
        for _ in range(min(BATCH, len(discarded))):
            discarded.popleft().drop()

    def _dead_letter(self, entry: Entry, reason: str, now: float) -> None:
        arguments, envelope = entry.queue.arguments, entry.envelope
        if arguments.dead_letter_exchange is not None and reason != ORPHANED:
            target, message = arguments.dead_letter_exchange, with_death(entry, reason, int(self._wall_clock()))
        elif arguments.alternate_exchange is not None and reason in _ALTERNATE:
            target, message = arguments.alternate_exchange, envelope.message
        else:
            return
        exchange = self.exchanges.get(target)
        if exchange is None:
            return
        key = arguments.dead_letter_routing_key
        copy = Envelope(
            self.memory,
            message,
            target,
            envelope.routing_key if key is None else key,
            publisher=envelope.publisher,
            priority=envelope.priority,
        )
        for queue in self.route(exchange, copy.routing_key, message):
            if reason == "rejected" or not is_automatic_cycle(message.properties, queue.name):
                queue.publish(copy, now)

    # -------------------------------------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When something expires; at once where something is left over."""
        if self._late or self._discarded:
            return 0.0
        times = [time for time in (self.alarms.next(), self.branches.alarms.next()) if time is not None]
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        """Let go of what has expired, messages and queues that nobody uses, and of what was left over."""
        self._drop_batch()
        self.branches.handle_timeout(now)
        for queue in list(self.alarms.due(now)):  # what is due again at once has its turn next time
            if queue.gone:
                continue
            if queue.unused_since(now):
                self.drop_queue(queue, now)
                continue
            queue.expire(now)
            self.alarms.clear(queue)  # that of a message that has gone with the batch
            self.arm(queue)
            if queue.ready and queue.consumers:
                queue.dispatch(now)
        self._bury(now)


BURIED_AT_ONCE = 256
"""Dead letters that are sent on in one go."""

_ALTERNATE = frozenset({"rejected", ORPHANED})
"""What 0-10's alternate exchange of a queue is for (queue.declare)."""


def _check_name(kind: str, name: str) -> None:
    if name.startswith("amq."):
        raise refusal(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")
