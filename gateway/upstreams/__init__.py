"""Named brokers: what the rest of the gateway asks of a broker, in any version.

An :class:`Upstream` keeps two links to its broker, one that publishes and one that consumes, reconnects them,
and restores what stood on them. Its parts, each a module:

* :mod:`~gateway.upstreams.upstream`   the broker by name: state, and one method per thing that may be asked
* :mod:`~gateway.upstreams.keeper`     keeps one link alive: versions to try, back-off
* :mod:`~gateway.upstreams.publishing.publisher`  publishing, and what became of each message
* :mod:`~gateway.upstreams.publishing.lanes`      the channels that publish, and their windows
* :mod:`~gateway.upstreams.publishing.waiting`    the lines before them
* :mod:`~gateway.upstreams.checks`     what is refused before the wire
* :mod:`~gateway.upstreams.publishing.isolation`  which of many publishes a broker ended the channel over
* :mod:`~gateway.upstreams.branches`   branches of distributed transactions
* :mod:`~gateway.upstreams.topology`   queues, exchanges and bindings, asked on channels that may die
* :mod:`~gateway.upstreams.consuming.leases`     messages on demand, each leased on a short-lived channel
* :mod:`~gateway.upstreams.consuming.consumers`  long-lived consumers
* :mod:`~gateway.upstreams.consuming.deliveries` deliveries, and the channels that hold them
* :mod:`~gateway.upstreams.consuming.dead_letters` rejecting without loss
* :mod:`~gateway.upstreams.probe`      what a broker really speaks
"""

from gateway.upstreams.branches import BranchOutcome, UpstreamBranch
from gateway.upstreams.consuming.consumers import Consumer, ConsumerState
from gateway.upstreams.consuming.deliveries import Delivery, Oversized, stands
from gateway.upstreams.probe import Attempt, Probe, probe
from gateway.upstreams.publishing.receipts import PublishReceipt
from gateway.upstreams.status import Status, UpstreamState
from gateway.upstreams.topology import QueueInfo
from gateway.upstreams.upstream import Upstream

__all__ = [
    "Attempt",
    "BranchOutcome",
    "Consumer",
    "ConsumerState",
    "Delivery",
    "Oversized",
    "Probe",
    "PublishReceipt",
    "QueueInfo",
    "Status",
    "Upstream",
    "UpstreamBranch",
    "UpstreamState",
    "probe",
    "stands",
]
