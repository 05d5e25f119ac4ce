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

    @property
    def module(self) -> str:
        """Full name of the module."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


_ALL: Final = (
    # ---------------------------------------------------------------------------------------- bridges
    Mutation(
        "a branch is not undone while its bridge is idle",
        "d71cf1ce",
        "gateway/bridges/flow.py",
        "            self._run(self.two_phase.tidy())\n",
        "            pass\n",
        "dtx",
    ),
    # ---------------------------------------------------------------------------------------- replays
    Mutation(
        "a replay does not mark what an earlier one may have sent",
        "f9d6fc11",
        "gateway/replays/runner.py",
        "item.resent = item.resent or item.key in sent",
        "pass",
        "replays",
    ),
    Mutation(
        "a replay ends although its last acknowledgement was lost",
        "67ed5ff3",
        "gateway/replays/runner.py",
        "return not chunk.last or bool(self._again)",
        "return not chunk.last",
        "replays",
    ),
    Mutation(
        "a replay does not mark a further copy of a message",
        "a7b7d00c",
        "gateway/replays/runner.py",
        "item.is_copy = item.key in keys",
        "item.is_copy = False",
        "replays",
    ),
    Mutation(
        "a replay forgets what had arrived when it goes on again",
        "c04d9267",
        "gateway/replays/runner.py",
        "        if job.flying:\n            seen =",
        "        job.landed = ()\n        if job.flying:\n            seen =",
        "replays",
    ),
    # ---------------------------------------------------------------------------------------- sources
    Mutation(
        "a process that lost a subscription gives back one by one",
        "c2c44f8c",
        "gateway/core/sources/taking.py",
        "        self._drop()\n        if (consumer",
        "        self._give_back()\n        if (consumer",
        "processes",
    ),
    Mutation(
        "one record stands for all messages of one id and body",
        "763045de",
        "gateway/core/sources/deduplicator.py",
        "repeated=candidate.strange and self._memory.has(delivery.channel, candidate.key, candidate.sha256, row.at),",
        "repeated=False,",
        "twins",
    ),
    Mutation(
        "two messages of one id and body in a commit count as one",
        "763045de",
        "gateway/core/sources/deduplicator.py",
        "two = candidate.strange and first.delivery.channel is candidate.delivery.channel",
        "two = False",
        "twins",
    ),
    Mutation(
        "a pull takes a second message of one id for the first",
        "ce3d2d25",
        "gateway/core/sources/deduplicator.py",
        "return stands(self._channels.get((key, sha256)))",
        "return False",
        "twins",
    ),
    Mutation(
        "a consumer's channel stays open where its close is canceled",
        "047608a4",
        "gateway/upstreams/consuming/consumers.py",
        "        except BaseException:  # the caller waits no longer; what is out goes back all the same\n"
        "            channel.abandon()\n"
        "            raise\n",
        "",
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
        "processes",
    ),
    # ---------------------------------------------------------------------------------------- publishing
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
        "schedules",
    ),
    Mutation(
        "a claim stays where its caller is canceled with its answer",
        "f96a0d65",
        "gateway/ledger/writing/writer.py",
        "            if not call.future.cancelled() and call.future.exception() is None:  # in the turn",
        "            if False:  # in the turn",
    ),
    # ---------------------------------------------------------------------------------------- planted
)
MUTATIONS: Final[Mapping[str, Mutation]] = {each.name: each for each in _ALL}
"""Name -> mutation."""
DEFECT_KINDS: Final[Mapping[str, str]] = {
    "a branch is prepared before its confirms are there": "dtx",
    "messages with a key are handed out in any order": "orders",
    "a tap acknowledges before the log has a message": "taps",
    "an outcome counts that comes behind the end of the lease": "processes",
    "an outcome counts although another process has the key": "processes",
    "two ends of a key in one commit both count": "processes",
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
