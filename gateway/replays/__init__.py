"""Messages once more: from the ledger or a queue, to the place they came from, or to any other.

``Replays`` is the only door (:mod:`gateway.replays.supervisor`). The rest::

    requests.py     what is asked for
    jobs.py         a replay as it is kept, and its states
    store.py        where it is kept
    runner.py       one at work: chunk by chunk, written down before, recorded after
    sources.py      where messages come from: the ledger's messages, dead deliveries
    queues.py       ... and queues
    targets.py      where they go: brokers, endpoints, back to their subscriptions
    places.py       where a dead letter came from, and what is sent of it
    items.py        one message on its way
"""

from gateway.replays.jobs import Job, JobState, Refusal, Wish
from gateway.replays.requests import ReplayRequest, ReplaySource, ReplayTarget
from gateway.replays.supervisor import Preview, Replays, Shown

__all__ = [
    "Job",
    "JobState",
    "Preview",
    "Refusal",
    "ReplayRequest",
    "ReplaySource",
    "ReplayTarget",
    "Replays",
    "Shown",
    "Wish",
]
