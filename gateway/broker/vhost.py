"""A virtual host: the names of exchanges and queues, what is bound to what, and where a message goes.

Nothing here knows of channels or sessions. Who asks is a :class:`Tenant`; what is refused is raised as a
:class:`~gateway.errors.RemoteError`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindingFound,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    QueryBinding,
)
from gateway.amqp.steps import Steps, TooManySteps
from gateway.amqp.values import Table
from gateway.broker.alarms import Alarms
from gateway.broker.arguments import (
    AUTO_DELETE,
    ENDS_WITH_CONNECTION,
    EXCHANGE_ARGUMENTS,
    EXCLUSIVITY,
    QUEUE_ARGUMENTS,
    binding_selector,
    exchange_arguments,
    queue_arguments,
    require_equal,
    weight,
)
from gateway.broker.consumers import Consumer
from gateway.broker.dead_letters import X_DEATH, automatic_deaths, with_death
from gateway.broker.declared import DeclaredByUser, Kind
from gateway.broker.dtx import Branches
from gateway.broker.exchanges import EXCHANGE_TYPES, PREDECLARED, Binding, Destination, Exchange
from gateway.broker.queues import BATCH, HOPS_MAX, LEVEL_WEIGHT, Entry, Envelope, Memory, Queue, Tenant
from gateway.broker.refusals import inequivalent, locked, missing, refusal, title
from gateway.broker.turns import PIECE, Job, Jobs, drained, for_each, pieces
from gateway.limits import BrokerLimits


class DefaultExchange(Exchange):
    """The exchange without a name: every queue is bound to it by its own name, for as long as it is there."""

    type = "direct"

    def __init__(self, queues: dict[str, Queue]) -> None:
        super().__init__("", durable=True)
        self._queues = queues

    def match(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
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
        jobs: what is left of work when its turn is over.
        lost: called for a dead letter that is dropped, with the name of its queue and the reason.
    """

    def __init__(
        self,
        name: str,
        memory: Memory,
        limits: BrokerLimits,
        random_octets: Callable[[int], bytes],
        wall_clock: Callable[[], float],
        jobs: Jobs,
        lost: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.turn = jobs.turn
        self._jobs = jobs
        self._lost = lost
        self.memory = memory
        self.limits = limits
        self.queues: dict[str, Queue] = {}
        self.default_exchange = DefaultExchange(self.queues)
        self.exchanges: dict[str, Exchange] = {"": self.default_exchange}
        for predeclared, kind in PREDECLARED.items():
            self.exchanges[predeclared] = kind(predeclared, durable=True)
        self.alarms: Alarms[Queue] = Alarms()
        self.branches = Branches(limits, self.start)
        self.consumers = 0
        self.dropped = 0
        """Dead letters that were dropped."""
        self._bindings = 0
        self._unbinding = 0
        """How many jobs remove bindings: until they are done some lead to what is gone."""
        self._declared = 0
        self.dead: deque[tuple[Entry, str]] = deque()
        """What has left its queue unconsumed, and why, for :meth:`send_dead_letters`."""
        self._discarded: deque[tuple[deque[Entry], int, str]] = deque()
        """Lines of queues that were emptied: the epoch of those to be dropped, and why they die, or nothing."""
        self._steps = Steps(0)
        """What is left of those of the message that is routed."""
        self._pending: deque[Queue] = deque()
        """Queues with something left to do."""
        self._stage = 0
        """Which of the things that wait comes first in the next turn."""
        self._late = False
        """Dead letters are left over, for :meth:`handle_timeout`."""
        self._random_octets = random_octets
        self._wall_clock = wall_clock

    def time(self) -> int:
        """Milliseconds since 1970."""
        return int(self._wall_clock() * 1000)

    def start(self, job: Job) -> None:
        """Work on a job, in this turn and in later ones."""
        self._jobs.start(job)

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

    def declare_exchange(self, request: DeclareExchange, user: DeclaredByUser | None = None) -> Exchange:
        """exchange.declare; 403, 404, 406, 503, 506. ``user``: in whose share it counts; None: in nobody's."""
        name = request.exchange
        what = self.title("exchange", name)
        if not name:
            raise refusal(403, "operation not permitted on the default exchange")
        if request.passive:
            return self.exchange(name)
        kind = EXCHANGE_TYPES.get(request.type)
        if kind is None:
            raise refusal(503, f"unknown exchange type '{request.type}'")
        arguments = exchange_arguments(request.arguments, what)
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
            require_equal(arguments, found.arguments, EXCHANGE_ARGUMENTS, what)
            return found
        _check_name("exchange", name)
        if len(self.exchanges) >= self.limits.exchanges:
            raise refusal(506, f"cannot declare {what}: the limit of {self.limits.exchanges} exchanges is reached")
        total = weight(name) + weight(request.arguments)
        self._charge(Kind.EXCHANGES, total, user)
        self.exchanges[name] = found = kind(
            name,
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
            arguments=arguments,
            table=request.arguments,
        )
        found.weight = total
        found.user = user
        return found

    def delete_exchange(self, request: DeleteExchange) -> Job:
        """exchange.delete; what is not there counts as deleted. It is gone at once, its bindings when the job is
        done."""
        name = request.exchange
        if not name:
            raise refusal(403, "operation not permitted on the default exchange")
        found = self.exchanges.get(name)
        if found is None:
            return self._unbind(())
        if name.startswith("amq."):
            raise refusal(403, f"deletion of system {self.title('exchange', name)} not allowed")
        if request.if_unused and found.bindings:
            raise refusal(406, f"{self.title('exchange', name)} in use")
        self._drop_exchange(found)
        return self._unbind([*found.bindings, *found.bindings_to])

    def _drop_exchange(self, exchange: Exchange) -> None:
        exchange.gone = True
        del self.exchanges[exchange.name]
        self._release(Kind.EXCHANGES, exchange.weight, exchange.user)

    def _release(self, kind: Kind, octets: int, user: DeclaredByUser | None) -> None:
        """What a client has declared is gone."""
        self._declared -= octets
        if user is not None:
            user.give(kind, octets)

    def _charge(self, kind: Kind, octets: int, user: DeclaredByUser | None) -> None:
        """Count what a client declares; 506 where it is too much in all, or for its user."""
        if self._declared + octets > self.limits.declared_octets:
            limit = self.limits.declared_octets
            raise refusal(506, f"the limit of {limit} octets of names and arguments is reached")
        if user is not None:
            user.take(kind, octets)
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
        arguments = queue_arguments(request.arguments, what)
        exclusive, auto_delete = request.exclusive, request.auto_delete
        if arguments.exclusivity is not None:
            exclusive = EXCLUSIVITY[arguments.exclusivity]
        if arguments.lifetime is not None:
            auto_delete = AUTO_DELETE[arguments.lifetime]
        if name in self.queues:
            found = self.queue(name, tenant)
            if found.exclusive != exclusive:
                raise locked(what)
            if found.durable != request.durable:
                raise inequivalent("durable", what, request.durable, found.durable)
            if found.auto_delete != auto_delete:
                raise inequivalent("auto_delete", what, auto_delete, found.auto_delete)
            require_equal(arguments, found.arguments, QUEUE_ARGUMENTS, what)
        else:
            if len(self.queues) >= self.limits.queues:
                raise refusal(506, f"cannot declare {what}: the limit of {self.limits.queues} queues is reached")
            total = weight(name) + weight(request.arguments)
            total += LEVEL_WEIGHT * (arguments.max_priority or 0)
            self._charge(Kind.QUEUES, total, tenant.declared)
            found = self.queues[name] = Queue(
                name,
                self,
                durable=request.durable,
                auto_delete=auto_delete,
                arguments=arguments,
                table=request.arguments,
            )
            found.weight = total
            found.user = tenant.declared
            found.exclusive = exclusive
            stays = request.durable and (tenant.durable_exclusive_stays or arguments.lifetime == "PERMANENT")
            found.ends_with_owner = arguments.lifetime in ENDS_WITH_CONNECTION or (exclusive and not stays)
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
        """Remove a queue with its messages, consumers and bindings; how many messages were ready. It is gone at once;
        its bindings and consumers may go in later turns."""
        queue.gone = True
        del self.queues[queue.name]
        self._release(Kind.QUEUES, queue.weight, queue.user)
        if queue.owner is not None:
            del queue.owner.owned[queue]
        self.alarms.clear(queue)
        count = queue.ready
        if queue.arguments.alternate_exchange is None:
            queue.purge()
        else:
            for line in queue.clear():
                self.discard(line, queue.epoch - 1, ORPHANED)
        if queue.bindings_to or queue.consumers:
            self.start(self._leave(queue, self._unbind(queue.bindings_to), now))
        return count

    def _leave(self, queue: Queue, unbinding: Job, now: float) -> Job:
        """Remove what leads to a queue and who takes from it."""
        yield from unbinding
        for consumer in drained(list(queue.consumers)):
            if consumer in queue.consumers:
                self.remove_consumer(consumer)
                consumer.channel.consumer_cancelled(consumer, now)
                yield

    def drop_tenant(self, tenant: Tenant, now: float) -> Job:
        """The connection is gone: so are its exclusive queues, but for those that outlive it."""

        def drop(queue: Queue) -> None:
            if queue not in tenant.owned:
                return
            if queue.ends_with_owner:
                self.drop_queue(queue, now)
            else:
                queue.owner = None
                del tenant.owned[queue]

        return for_each(drained(list(tenant.owned)), drop, 8)

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
        if len(queue.consumers) >= limits.queue_consumers:
            most = f"{limits.queue_consumers} consumers of one queue"
            raise refusal(506, f"cannot consume from {what}: the limit of {most} is reached")
        if len(consumer.channel.consumers) >= limits.channel_consumers:
            most = f"{limits.channel_consumers} consumers of one channel"
            raise refusal(506, f"cannot consume from {what}: the limit of {most} is reached")
        if consumer.selective and queue.selective >= limits.selective_consumers:
            most = f"{limits.selective_consumers} consumers that browse or select"
            raise refusal(506, f"cannot consume from {what}: the limit of {most} is reached")
        self._charge(Kind.CONSUMERS, consumer.weight, consumer.channel.connection.declared)
        self.consumers += 1
        queue.add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer takes no more. Its queue may have to go: :meth:`unused`."""
        self.consumers -= 1
        self._release(Kind.CONSUMERS, consumer.weight, consumer.channel.connection.declared)
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

    def bind(
        self,
        source: str,
        destination: Destination,
        routing_key: str,
        arguments: Table,
        user: DeclaredByUser | None = None,
    ) -> None:
        """queue.bind and exchange.bind; the same binding twice is one. ``user``: in whose share it counts."""
        exchange = self._bindable(source, destination)
        exchange.check_binding(routing_key, arguments)
        selector = binding_selector(arguments, self.title("binding", routing_key))
        binding = Binding(exchange, destination, routing_key, arguments, selector)
        if binding in exchange.bindings:
            return
        if self._bindings >= self.limits.bindings:
            raise refusal(506, f"the limit of {self.limits.bindings} bindings is reached")
        if exchange.tries(binding) and exchange.tried >= self.limits.tried_bindings:
            most = f"{self.limits.tried_bindings} bindings that every message is compared with"
            raise refusal(506, f"{self.title('exchange', source)}: the limit of {most} is reached")
        binding.user, binding.charged = user, binding.weight + exchange.growth(binding)
        self._charge(Kind.BINDINGS, binding.charged, user)
        exchange.add(binding)
        self._bindings += 1

    def unbind(self, source: str, destination: Destination | None, routing_key: str, arguments: Table | None) -> Job:
        """queue.unbind and exchange.unbind; what is not there counts as unbound. ``arguments`` None: any."""
        if source not in self.exchanges or destination is None:
            return self._unbind(())
        exchange = self._bindable(source, destination)
        if arguments is not None:
            return self._unbind((Binding(exchange, destination, routing_key, arguments),))
        return self._unbind_key(exchange, destination, routing_key)

    def _unbind_key(self, exchange: Exchange, destination: Destination, routing_key: str) -> Job:
        found: list[Binding] = []
        for piece in pieces(drained(list(destination.bindings_to)), BATCH):
            found += (each for each in piece if each.source is exchange and each.routing_key == routing_key)
            yield
        yield from self._unbind(drained(found))

    def _bindable(self, source: str, destination: Destination) -> Exchange:
        exchange = self.exchange(source)
        if exchange is self.default_exchange or destination is self.default_exchange:
            raise refusal(403, "operation not permitted on the default exchange")
        return exchange

    def _unbind(self, bindings: Iterable[Binding]) -> Job:
        """Remove bindings, and the auto-delete exchanges that lose their last one, and what led to those."""
        self._unbinding += 1
        return self._remove(deque(bindings))

    def _remove(self, todo: deque[Binding]) -> Job:
        count = 0
        while todo:
            binding = todo.popleft()
            source = binding.source
            before = source.index_weight
            if (bound := source.bindings.get(binding)) is not None:
                source.remove(bound)
                if bound.user is not None:
                    bound.user.give(Kind.BINDINGS, bound.charged)
                self._bindings -= 1
                self._declared -= binding.weight + before - source.index_weight
                if source.auto_delete and not source.bindings and self.exchanges.get(source.name) is source:
                    self._drop_exchange(source)
                    todo.extend(source.bindings_to)
            count += 1
            if not count % PIECE:
                yield
        self._unbinding -= 1

    def query_binding(self, request: QueryBinding, answer: Callable[[BindingFound], None]) -> Job:
        """exchange.bound of Qpid and of 0-10: answer what of the question exists."""
        exchange = self.exchanges.get(request.exchange)
        queue = self.queues.get(request.queue) if request.queue else None
        of_queue, of_all = _Matches(), _Matches()
        for piece in pieces(self._bindings_of(exchange), BATCH):
            for destination, key, arguments in piece:
                has_key = request.routing_key is None or key == request.routing_key
                has_arguments = request.arguments is None or arguments == request.arguments
                of_all.add(has_key, has_arguments)
                if not request.queue or destination is queue:
                    of_queue.add(has_key, has_arguments)
            yield
        scope = of_queue if of_queue.bindings else of_all
        answer(
            BindingFound(
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
        )

    def _bindings_of(self, exchange: Exchange | None) -> Iterator[tuple[Destination, str, Table]]:
        """Destination, key and arguments of each binding that there is now."""
        if exchange is self.default_exchange:
            for queue in list(self.queues.values()):
                yield queue, queue.name, {}
        elif exchange is not None:
            for binding in list(exchange.bindings):
                yield binding.destination, binding.routing_key, binding.arguments

    # ------------------------------------------------------------------------------------------- routing

    def route(self, exchange: Exchange, routing_key: str, message: Message) -> list[Queue]:
        """The queues that a message published to ``exchange`` comes to, each once.

        An exchange that leads nowhere hands the message to its alternate exchange. Exchanges bound in a circle
        are visited once. Raises :class:`~gateway.amqp.steps.TooManySteps` where finding them costs too much.
        """
        steps = self._steps
        steps.left = self.limits.match_steps
        found = exchange.match(routing_key, message, steps)
        if self._unbinding:
            found = [destination for destination in found if not destination.gone]
        if exchange.plain and (found or exchange.arguments.alternate_exchange is None):
            return list(found)  # type: ignore[arg-type]  # no exchange among them
        queues: dict[Queue, None] = {}
        visited = {exchange}
        todo = [(exchange, found)]
        while todo:
            current, found = todo.pop()
            steps.spend(8)
            if not found and current.arguments.alternate_exchange is not None:
                alternate = self.exchanges.get(current.arguments.alternate_exchange)
                found = () if alternate is None else (alternate,)
            elif current.plain and not self._unbinding:
                more: dict[Queue, None] = dict.fromkeys(found)  # type: ignore[arg-type]  # no exchange among them
                steps.spend(len(more) >> 3)
                queues.update(more)
                continue
            for destination in found:
                steps.spend(2)
                if destination.gone:
                    continue
                if isinstance(destination, Queue):
                    queues[destination] = None
                elif isinstance(destination, Exchange) and destination not in visited:
                    visited.add(destination)
                    todo.append((destination, destination.match(routing_key, message, steps)))
        return list(queues)

    # ------------------------------------------------------------------------------- death of messages

    def died(self, entry: Entry, reason: str) -> None:
        """An entry left its queue unconsumed; :meth:`send_dead_letters` sees to it when the current request is done."""
        arguments = entry.queue.arguments
        if arguments.dead_letter_exchange is None and arguments.alternate_exchange is None:
            entry.drop()
        else:
            self.dead.append((entry, reason))

    def send_dead_letters(self, now: float) -> None:
        """Send the dead to their dead-letter exchanges, and those who die of that. Many are sent a batch at a
        time, by :meth:`handle_timeout`: queues that feed each other must not hold up everybody else."""
        if self.dead and not self._late:
            self._send_dead_letters(now)

    def _send_dead_letters(self, now: float) -> None:
        dead, left, over = self.dead, DEAD_LETTERS_AT_ONCE, self.turn.over
        while dead and left:
            left -= 1
            entry, reason = dead.popleft()
            if self.memory.exhausted:
                self._lose(entry, "the memory for messages is used up")
            else:
                self._dead_letter(entry, reason, now)
            entry.drop()
            if over():
                break
            if not left and self.turn.is_timed:
                left = DEAD_LETTERS_AT_ONCE
        self._late = bool(dead)

    def later(self, queue: Queue) -> None:
        """Go on with a queue in a later turn."""
        self._pending.append(queue)

    def discard(self, line: deque[Entry], epoch: int, reason: str = "") -> None:
        """Drop what a purge has taken out of its queue: a batch now, the others by :meth:`handle_timeout`. With a
        ``reason`` they die."""
        is_first = not self._discarded
        self._discarded.append((line, epoch, reason))
        if is_first:
            self._drop_batch(0.0)

    def _drop_batch(self, now: float) -> None:
        left, over = BATCH, self.turn.over
        while left and self._discarded:
            line, epoch, reason = self._discarded[0]
            while left and line:
                if not left % PIECE and over():
                    return
                left -= 1
                entry = line.popleft()
                if entry.stored == epoch:
                    entry.stored = 0
                if entry.ready != epoch:
                    continue
                entry.ready = 0
                if reason:
                    self.dead.append((entry, reason))
                else:
                    entry.drop()
            if not line:
                self._discarded.popleft()

    def _lose(self, entry: Entry, why: str) -> None:
        self.dropped += 1
        self._lost(entry.queue.name, why)

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
            envelope.memory,
            message,
            target,
            envelope.routing_key if key is None else key,
            publisher=envelope.publisher,
            priority=envelope.priority,
        )
        try:
            queues = self.route(exchange, copy.routing_key, message)
        except TooManySteps:
            self._lose(entry, f"over {self.limits.match_steps} steps to find its queues")
            return
        if reason != "rejected":
            if X_DEATH in (message.properties.headers or {}):
                been = automatic_deaths(message.properties)
                queues = [queue for queue in queues if queue.name not in been]
            if not envelope.pass_on(copy, len(queues), self.limits.dead_letter_copies):
                most = f"{self.limits.dead_letter_copies} further copies or {HOPS_MAX} places"
                self._lose(entry, f"dead-lettering made more than {most} of one message")
                return
        for queue in queues:
            queue.publish(copy, now)

    # -------------------------------------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When something expires; at once where something is left over."""
        if self._late or self._discarded or self._pending:
            return 0.0
        times = [time for time in (self.alarms.next(), self.branches.alarms.next()) if time is not None]
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        """Delete expired messages, queues that nobody uses, and the rest of earlier turns. Where all of
        it takes longer than a turn, each kind comes first in its turn."""
        stages = (self._drop_batch, self.branches.handle_timeout, self._expire, self._go_on, self._send_dead_letters)
        for number in range(len(stages)):
            stages[(self._stage + number) % len(stages)](now)
            if self.turn.over():
                break
        self._stage = (self._stage + 1) % len(stages)

    def _expire(self, now: float) -> None:
        again: dict[Queue, None] = {}
        for queue in self.alarms.due(now):
            if queue.gone or queue in again:
                continue  # what is due again at once has its turn next time
            if queue.unused_since(now):
                self.drop_queue(queue, now)
            else:
                queue.expire(now)
                again[queue] = None
                queue.move_up(now)
            if self.turn.over():
                break
        for queue in again:
            self.alarms.clear(queue)  # that of a message that has gone with the batch
            self.arm(queue)

    def _go_on(self, now: float) -> None:
        for _ in range(len(self._pending)):
            if self.turn.over():
                return
            self._pending.popleft().go_on(now)


DEAD_LETTERS_AT_ONCE = 256
"""Dead letters that are sent on in one go."""

_ALTERNATE = frozenset({"rejected", ORPHANED})
"""What 0-10's alternate exchange of a queue is for (queue.declare)."""


def _check_name(kind: str, name: str) -> None:
    if name.startswith("amq."):
        raise refusal(403, f"{kind} name '{name}' contains reserved prefix 'amq.*'")
