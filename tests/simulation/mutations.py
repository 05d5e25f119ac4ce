"""Mutations of the gateway's code: fixes of its history, each undone alone, and planted defects.

Each is the smallest change of the code of today that brings the defect back. ``undoing.py`` puts one into its module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file."""

    name: str
    """What is wrong with it."""
    commit: str
    """Short hash of the commit whose fix it undoes; empty: the defect is planted."""
    path: str
    """Of the file, from the root of the project."""
    before: str
    """Text that is in the file exactly once."""
    after: str
    """Text that replaces it."""
    kind: str = ""
    """Kind of the worlds that can show it, see ``KINDS`` in ``worlds.py``."""
    first: int = 1
    """Seed of the first world. One that few worlds show begins with a world that has shown the defect once."""

    @property
    def module(self) -> str:
        """Full name of the module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


ALL: Final = (
    # ---------------------------------------------------------------------------------------- bridges
    Mutation(
        "a branch is not undone while its bridge is idle",
        "d71cf1ce",
        "gateway/bridges/flow.py",
        "            self._run(self.two_phase.tidy())\n",
        "            pass\n",
        "dtx",
    ),
    # ---------------------------------------------------------------------------------------- subscriptions
    Mutation(
        "what is behind a batch that is given up is stored",
        "e3b67cd1",
        "gateway/core/sources/taking.py",
        "                    return  # and nothing behind it is stored\n",
        "                    pass\n",
        "orders",
        422_239,
    ),
    Mutation(
        "a resume finds nothing to do while a pause is written",
        "",
        "gateway/core/subscriptions.py",
        "        async with self._locks.of(name):  # else",
        "        if True:  # else",
        "steering",
        2_711,
    ),
    # ---------------------------------------------------------------------------------------- replays
    Mutation(
        "a replay does not mark what an earlier one may have sent",
        "f9d6fc11",
        "gateway/replays/runner.py",
        " or item.key in sent",
        "",
        "replays",
        100_000,
    ),
    Mutation(
        "a replay does not mark what another one may have under way",
        "487892e3",
        "gateway/replays/runner.py",
        "item.name in flying or ",
        "",
        "strands",
        375_071,
    ),
    Mutation(
        "a replay ends although its last acknowledgement was lost",
        "67ed5ff3",
        "gateway/replays/queues.py",
        "wanted = max(left, 0) or landed.total()",
        "wanted = max(left, 0)",
        "redrives",
    ),
    Mutation(
        "a replay does not mark a further copy of a message",
        "a7b7d00c",
        "gateway/replays/runner.py",
        "item.is_copy = item.key in keys",
        "item.is_copy = False",
        "replays",
        20_893,
    ),
    # ---------------------------------------------------------------------------------------- sources
    Mutation(
        "an equal message that is given back takes another with it",
        "a9d317cb",
        "gateway/core/sources/deduplicator.py",
        "        left = counts.pop(channel, 0) - 1\n",
        "        left, counts = 0, {}\n",
        first=6377,
    ),
    Mutation(
        "a pull stores what another one is storing",
        "46e780ac",
        "gateway/core/leasing/ledger_leases.py",
        "            await backlog.stored_before({arrival.key for arrival in doubtful if arrival.key}, work)\n",
        "",
        first=42_305,
    ),
    Mutation(
        "a process that lost a subscription gives back one by one",
        "c2c44f8c",
        "gateway/core/sources/taking.py",
        "        self._drop()\n        if (consumer",
        "        self._give_back()\n        if (consumer",
        "processes",
        100_000,
    ),
    Mutation(
        "one record stands for all messages of one id and body",
        "763045de",
        "gateway/core/sources/deduplicator.py",
        "repeated=candidate.strange and self._memory.has(delivery.channel, candidate.key, candidate.sha256, row.at),",
        "repeated=False,",
        "equals",
    ),
    Mutation(
        "a consumer's channel stays open where its close is canceled",
        "047608a4",
        "gateway/upstreams/consuming/consumers.py",
        "        except BaseException:  # the caller waits no longer; what is out goes back all the same\n"
        "            channel.abandon()\n"
        "            raise\n",
        "",
        first=100_000,
    ),
    Mutation(
        "a retried message has lost its count of attempts",
        "7dd4d1d9",
        "gateway/replays/targets.py",
        "Ending.REVIVE, attempt=attempt,",
        "Ending.REVIVE, attempt=0,",
        "retries",
    ),
    Mutation(
        "a settlement is recorded again although the ledger has it",
        "afb3e584",
        "gateway/core/leasing/broker_leases.py",
        "self._parts.recorder.add_again(entries)",
        "self._parts.recorder.add(entries)",
        "losses",
    ),
    # ---------------------------------------------------------------------------------------- publishing
    Mutation(
        "what the ledger may have taken is called not sent",
        "1c6f3204",
        "gateway/ledger/writing/writer.py",
        "                raise CommitInDoubt from error\n",
        "                raise CommitCutOff from error\n",
        first=2640,
    ),
    Mutation(
        "the first that waits for room is left out of its order",
        "1f5fb697",
        "gateway/core/publishing/publisher.py",
        "            for future in futures:\n                future.cancel()\n            raise\n",
        "            raise\n",
        first=100_000,
    ),
    Mutation(
        "the task of an outbox stays where another process has its brokers",
        "8b6e3314",
        "gateway/core/publishing/sending.py",
        "if runner is not None:  # another process had taken the work over",
        "if False:",
        "processes",
    ),
    Mutation(
        "a doubtful outbox entry that was released unsent has no mark",
        "c2d902b9",
        "gateway/core/publishing/sending.py",
        "if resent or row.doubtful else",
        "if resent else",
        "restarts",
    ),
    Mutation(
        "a claim stays where its caller is canceled with its answer",
        "f96a0d65",
        "gateway/ledger/writing/writer.py",
        "            if not call.future.cancelled() and call.future.exception() is None:  # in the turn",
        "            if False:  # in the turn",
        "claims",
    ),
    Mutation(
        "events of a scheduled publish that another process has count",
        "5f321810",
        "gateway/ledger/pending/outbox.py",
        "for message_id, entries in told if message_id in took for entry in entries",
        "for message_id, entries in told for entry in entries",
        "schedules,processes",
    ),
    Mutation(
        "an outcome is written again where the answer of its commit was lost",
        "5f321810",
        "gateway/core/publishing/publisher.py",
        "                await self._record(events)\n                return\n",
        "                await self._ledger.record(events)\n                return\n",
        "losses",
    ),
    Mutation(
        "a caller gets the outcome of a key that another process has",
        "18640a71",
        "gateway/core/publishing/keys.py",
        "            disown(results)\n",
        "            pass\n",
        "strands",
    ),
    Mutation(
        "a message gets the outcome of a key that another process has",
        "18640a71",
        "gateway/core/publishing/keyed_messages.py",
        "        disown([result for line, result in zip(lines, results, strict=True) if line.item.key in lost])\n",
        "",
        "strands",
    ),
    Mutation(
        "a push does not look for what its broker may have forgotten",
        "f77aa52d",
        "gateway/webhooks/pusher.py",
        "lambda keys: parts.ledger.seen(self._arrivals.scope, keys), settings.prefetch",
        "lambda keys: parts.ledger.seen(self._arrivals.scope, keys), 0",
        "forgetting",
    ),
    Mutation(
        "a tap of 0-10 gets no more credit once it is used up",
        "0cf3ea6d",
        "gateway/v010/client_channel.py",
        "elif subscription.credit == 0 and subscription.owed:",
        "elif False:",
        "depths",
    ),
    Mutation(
        "message.flush is complete before all that it brings",
        "60cc21ed",
        "gateway/broker/requests.py",
        "    while consumer.queue.pending and consumer.admits(0):\n        yield\n",
        "    if consumer is None:\n        yield\n",
        "turns",
    ),
    Mutation(
        "a request on a closed channel fails where nobody hears of it",
        "b24ca306",
        "gateway/link.py",
        "            future.set_exception(self.closed)\n            future.exception()  # as in end\n",
        "            future.set_exception(self.closed)\n",
    ),
    Mutation(
        "a replay forgets what is in doubt and has not come",
        "c04d9267",
        "gateway/replays/runner.py",
        "late = _remembered(doubtful - came)",
        "late: tuple[str, ...] = ()",
        "replays",
    ),
    Mutation(
        "calls at the same time begin a replay twice",
        "a71ce9a8",
        "gateway/replays/supervisor.py",
        "if (begun := self._runners.get(name)) is not None:  # by another call",
        "if (begun := None) is not None:  # by another call",
        "copies",
    ),
    Mutation(
        "a body is not kept because the ledger was away",
        "e4a5301a",
        "gateway/core/publishing/publisher.py",
        "if not patiently or isinstance(error, EntriesRefused):",
        "if True:",
        "copies",
        2_919,
    ),
    Mutation(
        "events of a key that another process has count",
        "18640a71",
        "gateway/ledger/writing/group.py",
        "if call.error is None:  # else another process",
        "if True:  # else another process",
        "processes",
    ),
    Mutation(
        "events of a commit that failed are written again unasked",
        "afb3e584",
        "gateway/core/work/recorder.py",
        "self._tried.extendleft(reversed(group))",
        "self._waiting.extendleft(reversed(group))",
        "losing again",
    ),
    Mutation(
        "a command of 0-10 is not reported again when those before it are complete",
        "de8ba852",
        "gateway/v010/execution.py",
        "if 0 <= self._early < self.low:",
        "if False:",
    ),
    Mutation(
        "a request on a connection that ended fails where nobody hears of it",
        "b24ca306",
        "gateway/link.py",
        "            future.set_exception(connection_error(self.ended))\n"
        "            future.exception()  # as at the end of a channel\n",
        "            future.set_exception(connection_error(self.ended))\n",
    ),
    Mutation(
        "a branch that could not be undone is tried once",
        "d71cf1ce",
        "gateway/bridges/two_phase.py",
        "                pause = backoff.next()\n            with suppress",
        "                pause = None\n            with suppress",
        "branches",
    ),
    Mutation(
        "nobody hears that there is a branch to be undone",
        "d71cf1ce",
        "gateway/bridges/two_phase.py",
        "        self._aborted.add(id)\n        self._untidy.set()\n",
        "        self._aborted.add(id)\n",
        "branches",
    ),
    Mutation(
        "an outcome is recorded although another process has the message",
        "5f321810",
        "gateway/core/publishing/publisher.py",
        "self._ledger.record(accepted + events) if not self._intent_always else self._record(events)",
        "self._ledger.record(accepted + events)",
        "strands",
    ),
    Mutation(
        "a subscription that a reload could not start is not tried again",
        "58118ec9",
        "gateway/core/work/subscription_work.py",
        "            await backoff.wait()\n            if name not in self._granted",
        "            return\n            if name not in self._granted",
        "unreadable",
    ),
    Mutation(
        "a bridge with dtx does not mark what it may have published in another mode",
        "0ec02ed1",
        "gateway/bridges/flow.py",
        "(two_phase is None or two_phase.unsure or not item.key)",
        "(two_phase is None or not item.key)",
        "modes",
    ),
    Mutation(
        "a pull takes another message of one id and body for one that it has accepted",
        "ce3d2d25",
        "gateway/core/sources/deduplicator.py",
        "return any(stands(each) for each, _ in self._channels.get((key, sha256), ()))",
        "return False",
        "equals",
    ),
    Mutation(
        "a lease is called lost although its process may have settled it",
        "43deb34f",
        "gateway/core/work/peers.py",
        "if _never_sent(error) and not any(",
        "if not any(",
        "strands",
    ),
    # ---------------------------------------------------------------------------------------- fronts
    Mutation(
        "a worker that stores publishes ends although more have come",
        "5b1949ff",
        "gateway/front/store.py",
        "            if self.is_drained or self.pending:\n                continue\n",
        "            if oldest is None:\n                return\n"
        "            if self.pending:\n                continue\n",
        "fronts",
    ),
    Mutation(
        "a request waits for ever behind those of a channel that ended",
        "65eeaeef",
        "gateway/front/channels/channel.py",
        "        self.client.rouse()  # requests of this channel may be first in the backlog\n",
        "",
        "fronts",
    ),
    Mutation(
        "a channel is closed at a broker that is about to be lost",
        "65eeaeef",
        "gateway/front/channels/channel.py",
        "        if up is not None and not self.client.link.is_up:\n            return",
        "        if False:\n            return",
        "fronts",
    ),
    Mutation(
        "a consumer that was being restored is forgotten at a second loss",
        "cedaefc2",
        "gateway/front/channels/recovery.py",
        "    channel.sent.clear()\n"
        "    channel.confirms_upstream = False\n"
        "    for request in pending:\n"
        "        if type(request) is operations.Cancel:  # the consumer has ended with the connection\n"
        "            consuming.gone(channel, request)\n"
        "            channel.done(request)\n"
        "    pending = [request for request in pending if type(request) is not operations.Cancel]\n"
        "    waits = {request.consumer_tag for request in pending if type(request) is operations.Consume}\n",
        "    waits = {\n"
        "        request.consumer_tag for request in channel.sent.values() if type(request) is operations.Consume\n"
        "    }\n"
        "    channel.sent.clear()\n"
        "    channel.confirms_upstream = False\n"
        "    for request in pending:\n"
        "        if type(request) is operations.Cancel:  # the consumer has ended with the connection\n"
        "            consuming.gone(channel, request)\n"
        "            channel.done(request)\n"
        "    pending = [request for request in pending if type(request) is not operations.Cancel]\n",
        "fronts",
    ),
    Mutation(
        "a request waits for ever behind a flush",
        "e736bc26",
        "gateway/front/channels/credit.py",
        "        channel.client.tell(operations.Done(channel.number, serial, serial))\n    channel.client.rouse()\n",
        "        channel.client.tell(operations.Done(channel.number, serial, serial))\n",
        "fronts",
    ),
    Mutation(
        "a channel that ends is closed at a broker that has ended it",
        "e736bc26",
        "gateway/front/links.py",
        "            self._closing = False\n",
        "            self._closing = False\n            raise\n",
        "fronts",
    ),
    Mutation(
        "a publish that is stored again has no mark",
        "cbfb865f",
        "gateway/front/store.py",
        "                item.resent = True  # the ledger may have it",
        "                pass  # the ledger may have it",
        "fronts",
    ),
    Mutation(
        "a publish that is stored again is there twice",
        "994c87be",
        "gateway/ledger/pending/outbox.py",
        "call.known = known.intersection(call.resent)",
        "call.known = set()",
        "fronts",
    ),
    Mutation(
        "a question under way when the broker is lost is refused",
        "ac8ef3fe",
        "gateway/front/links.py",
        "            except BrokerUnavailable:\n                pass\n",
        "            except BrokerUnavailable as error:\n                outcome = RemoteError(506, str(error))\n",
        "fronts",
    ),
    Mutation(
        "a channel whose client left in a commit stays open at the broker",
        "3ca6c36d",
        "gateway/front/links.py",
        "        elif self.usable:  # a transaction was under way",
        "        elif False:  # a transaction was under way",
        "fronts",
    ),
    Mutation(
        "a broker of 0-10 gives back at once what a rollback is to undo",
        "5dbdb41b",
        "gateway/front/channels/settling.py",
        "return undoes_release(channel) is not channel.client.rules.transactional_release",
        "return undoes_release(channel) and not channel.client.rules.transactional_release",
        "fronts",
    ),
    Mutation(
        "a classic broker undoes with a rollback what a client of 0-10 has given back",
        "cc0bda6f",
        "gateway/front/channels/settling.py",
        "return undoes_release(channel) is not channel.client.rules.transactional_release",
        "return not undoes_release(channel) and channel.client.rules.transactional_release",
        "fronts",
    ),
    Mutation(
        "a classic session forgets what a rollback has undone",
        "e736bc26",
        "gateway/classic/client_channel.py",
        "        if undecided and not committed:\n",
        "        if False:\n",
        "fronts",
    ),
    Mutation(
        "a consumer with credit that is to begin in a commit never begins",
        "da52fd13",
        "gateway/front/channels/credit.py",
        "        start_later(channel, consumer)\n        return\n    consumer",
        "        return\n    consumer",
        "fronts",
    ),
    Mutation(
        "several deliveries are settled in the client's order",
        "65eeaeef",
        "gateway/front/channels/settling.py",
        "pairs = sorted(zip(numbers, entries, strict=True), key=lambda pair: pair[1].number)",
        "pairs = list(zip(numbers, entries, strict=True))",
        "fronts",
    ),
    Mutation(
        "a front settles on a connection that has just been lost",
        "65eeaeef",
        "gateway/front/channels/channel.py",
        "elif self.up is not None and self.client.link.is_up:",
        "elif self.up is not None:",
        "fronts",
    ),
    Mutation(
        "an exclusive queue is there when its client has heard that it is cut off",
        "ef35a156",
        "gateway/front/client.py",
        "        queues = self._queues_to_delete()\n"
        "        if queues and self.open:\n            self.link.leave(self, queues, self._ended)\n"
        "        else:\n            self._ended()\n",
        "        self._ended()\n",
        "fronts",
    ),
    Mutation(
        "a session of 0-10 that is left as its connection ends is an error",
        "2a6c805f",
        "gateway/v010/server.py",
        "        if channel is not None:  # the connection may have ended while the session was being left\n"
        "            self._names.discard(channel.name)\n",
        "        self._names.discard(self.channels[wire].name)\n",
        "fronts",
    ),
    Mutation(
        "what its broker forgot in a crash comes again without a mark",
        "2ceabcd2",
        "gateway/front/channels/deliveries.py",
        "    if handed.add(known) and not operation.redelivered:\n",
        "    if False:\n",
        "fronts",
    ),
    # ---------------------------------------------------------------------------------------- webhooks
    Mutation(
        "an endpoint that fails and has no row left gets no message of its queue",
        "456d77d5",
        "gateway/webhooks/pusher.py",
        "        if self._demand is Demand.LITTLE:\n            self.changed()",
        "        if False:\n            self.changed()",
        "pushes",
    ),
    # ---------------------------------------------------------------------------------------- planted
    Mutation(
        "what the ledger has already is not acknowledged",
        "",
        "gateway/core/sources/intake.py",
        "            if arrival.id:\n                settle(",
        "            if arrival.id and arrival not in known:\n                settle(",
    ),
    Mutation(
        "a bridge acknowledges before its target has confirmed",
        "",
        "gateway/bridges/flow.py",
        "        if self._early:\n            for item in sent:",
        "        if True:\n            for item in sent:",
        "bridges",
    ),
    Mutation(
        "a bridge does not mark what it sends again",
        "",
        "gateway/bridges/flow.py",
        "                item.resent = item.resent or again\n",
        "",
        "bridges",
    ),
    Mutation(
        "the decision over a branch does not remember its messages",
        "",
        "gateway/bridges/two_phase.py",
        "self._register.decide(id, detail, prepared, inbox)",
        "self._register.decide(id, detail, prepared, [])",
        "dtx",
    ),
    Mutation(
        "a replay takes messages off their queue before it sends them",
        "",
        "gateway/replays/runner.py",
        "                await self._send(items)\n            except",
        "                await self._source.passed(items)\n                await self._send(items)\n            except",
        "replays",
    ),
    Mutation(
        "a replay that is asked for again sends all of it again",
        "",
        "gateway/replays/runner.py",
        "        if job.runs > 1:\n",
        "        if False:\n",
        "copies",
    ),
    Mutation(
        "a replay that was broken off marks nothing",
        "",
        "gateway/replays/runner.py",
        "item.resent = item.resent or item.name in doubtful or lately",
        "item.resent = item.resent or lately",
        "copies",
    ),
    Mutation(
        "a replay does not count what it had sent before a crash",
        "",
        "gateway/replays/runner.py",
        "            job.found += len(landed)\n            job.sent += len(landed)\n            job.landed",
        "            job.landed",
        "copies",
    ),
    Mutation(
        "a message that an endpoint refused is acknowledged",
        "",
        "gateway/webhooks/attempts/outcomes.py",
        "            await self._keep(item, item.arrival, at, [*kept, entry], wait, reason)\n",
        "            self._gone(item.arrival, Settlement.ACCEPT)\n",
        "pushes",
    ),
    Mutation(
        "a scheduled publish without an outcome is given up",
        "",
        "gateway/core/publishing/sending.py",
        '                work.retry.append((row.message_id, OLD_PLACE, reason | {"resent": True}))\n',
        "                work.done.append((row.message_id, ()))\n",
        "schedules",
    ),
    Mutation(
        "a scheduled publish is sent again without a mark",
        "",
        "gateway/core/publishing/sending.py",
        'work.retry.append((row.message_id, OLD_PLACE, reason | {"resent": True}))',
        "work.retry.append((row.message_id, OLD_PLACE, reason))",
        "schedules",
    ),
    Mutation(
        "a publish whose channel died counts as not sent",
        "",
        "gateway/upstreams/publishing/publisher.py",
        'OutcomeUnknown(f"the channel died',
        'BrokerUnavailable(f"the channel died',
    ),
    Mutation(
        "a message that its consumer released is acknowledged",
        "",
        "gateway/core/leasing/broker_leases.py",
        "subscription, ack_ids, Settlement.RELEASE, End.RELEASED, EventKind.RELEASED",
        "subscription, ack_ids, Settlement.ACCEPT, End.RELEASED, EventKind.RELEASED",
    ),
    Mutation(
        "the auditor goes on when the gateway stops",
        "",
        "gateway/core/gateway.py",
        "await asyncio.gather(self.auditor.close(), self.observer.close()",
        "await asyncio.gather(self.observer.close()",
    ),
    Mutation(
        "links to a broker stay open when the gateway stops",
        "",
        "gateway/upstreams/upstream.py",
        "            for task in self._tasks:\n                task.cancel()\n        if self._tasks:\n",
        "        if False:\n",
    ),
)
MUTATIONS: Final[Mapping[str, Mutation]] = {each.name: each for each in ALL}
"""Name -> mutation."""
DEFECT_KINDS: Final[Mapping[str, str]] = {
    "a branch is prepared before its confirms are there": "dtx",
    "messages with a key are handed out in any order": "orders",
    "a tap acknowledges before the log has a message": "taps",
    "an outcome counts that comes behind the end of the lease": "processes",
    "an outcome counts although another process has the key": "processes",
    "two ends of a key in one commit both count": "losses",
    "a front sends again without a mark": "fronts",
    "a front forgets what its broker has not confirmed": "fronts",
    "a front confirms before its broker does": "fronts",
    "a front confirms before its ledger has a publish": "fronts",
    "a front lets newer publishes pass stored ones": "fronts",
    "a front hands out a repeat as new": "fronts",
}
"""Defects of ``defects.py`` -> the kind of the worlds that can show them; all others need no special one."""
FIXES: Final[Mapping[str, str]] = {
    "a branch is prepared before its confirms are there": "2c2841c8",
    "an outcome that was not recorded is forgotten": "dd0ab0a2",
    "an outcome counts that comes behind the end of the lease": "5f321810",
    "an outcome counts although another process has the key": "18640a71",
    "two ends of a key in one commit both count": "9e44572e",
}
"""Defects of ``defects.py`` that undo a fix -> short hash of its commit."""
