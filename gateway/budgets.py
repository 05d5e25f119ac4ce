"""How much of everything that callers share one client may hold, in one table.

Each row of :data:`RESOURCES` has a total, and each client a share of it. A client at its share gets 429 and takes
nothing from others. What is reserved of the total is for clients with ``admin``, so that an operator can always act.
Time is no part of it: what is taken is held until it is given back. How often a client may ask is counted by
:mod:`gateway.access.rates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from gateway.errors import BudgetExceeded, Overloaded

ClientKind = Literal["client", "address", "proxy", "endpoint", "process", "subscription", "bridge", "tap"]
"""What holds something. ``client``: the client of a credential, or a user of the embedded broker."""
Holder = tuple[ClientKind, str]
"""Kind and name of a client: a key that is called like an address has a share of its own."""


class ShareHolder(NamedTuple):
    """Whose share counts: a key's or token's client, a user of the embedded broker, or an address."""

    name: str
    """The client's name, or its address (IPv6: its /64)."""
    is_admin: bool = False
    """Whether it may use what is reserved."""
    is_alone: bool = False
    """Whether there can be no other client, so that all of the total is its share."""
    kind: ClientKind = "client"

    @property
    def holder(self) -> Holder:
        """Under what its holdings are counted."""
        return self.kind, self.name


NOTHING: Final[Mapping[str, int]] = {}
ALONE: Final = ShareHolder("", is_admin=True, is_alone=True)
"""Who works with the gateway in its own process, with nobody beside it."""
ON_BEHALF: Final[ContextVar[ShareHolder]] = ContextVar("on_behalf", default=ALONE)
"""For whom the task under way works: the client of a request, or the gateway itself."""


@dataclass(frozen=True, slots=True)
class BudgetResource:
    """One thing that clients share."""

    name: str
    """Its name in settings, errors and metrics."""
    what: str
    """What is counted, in the plural, as in "you hold 12 leases"."""
    total: int
    """How much there is of it, where no setting says otherwise."""
    setting: str
    """The setting that says how much there is of it."""
    scope: Literal["process", "ledger"]
    """Where it is counted: ``process`` or ``ledger``."""
    advice: str
    """What a client at its share can do, as a sentence."""
    is_split: bool = True
    """Whether a client has a share of it; False: nobody has, and those who hold it make room for each other."""
    within: str = ""
    """The resource that each of it takes one of, too; its total is lower than that one's."""
    one: str = ""
    """The setting of the largest amount that a request may need. A client that holds nothing may take that much."""


RESOURCES: Final[Mapping[str, BudgetResource]] = {
    row.name: row
    for row in (
        BudgetResource(
            "requests", "HTTP requests under way", 1_000, "http.concurrency", "process",
            "Wait for answers before you send more requests.",
        ),
        BudgetResource(
            "leases", "messages held by brokers under leases", 10_000, "http.leases_max", "process",
            "Settle some of them, or pull fewer.",
        ),
        BudgetResource(
            "lease_bytes", "bytes of messages held by brokers under leases", 512 << 20, "http.leases_bytes_max",
            "process", "Settle some of them, or pull fewer.", one="http.body_max",
        ),
        BudgetResource(
            "streams", "streams and pulls that wait", 750, "budgets.totals", "process",
            "End one, or pull with `wait` 0.", within="requests",
        ),
        BudgetResource(
            "bytes", "bytes of bodies of requests, and of messages in answers, under way", 512 << 20,
            "http.bodies_max", "process",
            "Wait for answers before you send more, or send smaller batches.", one="http.body_max",
        ),
        BudgetResource(
            "lookups", "DNS lookups of endpoints under way", 16, "budgets.totals", "process",
            "Wait for the answers of the name server.",
        ),
        BudgetResource(
            "outbound_requests", "logins, `:test` and `:verify` requests under way", 64, "budgets.totals", "process",
            "Wait for their answers, or lower the deadline of the endpoint.",
        ),
        BudgetResource(
            "scheduled", "scheduled publishes in the ledger", 1_000_000, "budgets.totals", "ledger",
            "Cancel some of them, or wait until they are sent.",
        ),
        BudgetResource(
            "scheduled_bytes", "bytes of scheduled publishes in the ledger", 4 << 30, "budgets.totals", "ledger",
            "Cancel some of them, or wait until they are sent.",
        ),
        BudgetResource(
            "idempotency_keys", "Idempotency-Keys in the ledger", 10_000_000, "budgets.totals", "ledger",
            "Publish without a key, or wait until keys expire (ledger.key_retention).",
        ),
        BudgetResource(
            "connections", "HTTP connections", 4_000, "http.connections", "process",
            "Use a connection for more than one request.",
        ),
        BudgetResource(
            "ops_connections", "connections of the operations port", 256, "budgets.totals", "process",
            "Close idle ones.", is_split=False,
        ),
        BudgetResource(
            "cluster_connections", "connections of the cluster port", 256, "budgets.totals", "process",
            "Close idle ones.", is_split=False,
        ),
        BudgetResource(
            "subscriptions", "subscriptions", 10_000, "budgets.totals", "ledger",
            "Delete some of them.",
        ),
        BudgetResource(
            "endpoints", "endpoints", 10_000, "budgets.totals", "ledger",
            "Delete some of them.",
        ),
        BudgetResource(
            "bridges", "bridges", 4_000, "budgets.totals", "ledger",
            "Delete some of them, or define them in the configuration file.",
        ),
        BudgetResource(
            "taps", "taps", 4_000, "budgets.totals", "ledger",
            "Delete some of them, or define them in the configuration file.",
        ),
        BudgetResource(
            "ledger_rows", "rows that wait for the ledger", 50_000, "ledger.queue_max", "process",
            "What is over the share waits until rows are written.",
        ),
        BudgetResource(
            "embedded_connections", "connections of a user to the embedded broker", 4_096, "embedded.connections",
            "process", "Use a connection for more than one channel.",
        ),
        BudgetResource(
            "embedded_bytes", "bytes of messages in the embedded broker that a user has published", 256 << 20,
            "embedded.queue_memory", "process", "Have them consumed, or publish fewer.", one="embedded.message_max",
        ),
        BudgetResource(
            "embedded_channels", "channels of a user of the embedded broker", 65_536, "embedded.channels", "process",
            "Close some of them.",
        ),
        BudgetResource(
            "embedded_exchanges", "exchanges in the embedded broker that a user has declared", 65_536,
            "embedded.exchanges", "process", "Delete some of them.",
        ),
        BudgetResource(
            "embedded_queues", "queues in the embedded broker that a user has declared", 65_536, "embedded.queues",
            "process", "Delete some of them.",
        ),
        BudgetResource(
            "embedded_bindings", "bindings in the embedded broker that a user has made", 262_144, "embedded.bindings",
            "process", "Unbind some of them.",
        ),
        BudgetResource(
            "embedded_consumers", "consumers of a user of the embedded broker", 65_536, "embedded.consumers", "process",
            "Cancel some of them.",
        ),
        BudgetResource(
            "embedded_declared_bytes",
            "bytes of names, keys and arguments in the embedded broker that a user has declared", 64 << 20,
            "embedded.declared_bytes", "process", "Delete some of what it has declared.",
        ),
        BudgetResource(
            "front_connections", "connections of a user to a front", 65_536, "budgets.totals", "process",
            "Use a connection for more than one channel.",
        ),
        BudgetResource(
            "front_channels", "channels at brokers of a user of a front", 65_536, "budgets.totals", "process",
            "Close some of them.",
        ),
        BudgetResource(
            "front_bytes", "bytes that a user of a front has published, without the broker's answer", 512 << 20,
            "budgets.totals", "process", "What is over the share waits until the broker answers.",
        ),
        BudgetResource(
            "front_deliveries", "deliveries that clients of a user of a front may hold beyond `prefetch_max`",
            1_000_000, "budgets.totals", "process", "What is over the share is not sent before clients acknowledge.",
        ),
        BudgetResource(
            "held_bytes", "bytes of messages that pushed subscriptions, bridges and taps hold", 1 << 30,
            "budgets.totals", "process", "Lower prefetch_octets of some of them.", is_split=False,
        ),
    )
}  # fmt: skip
"""Name -> resource."""


REACHED: Final = ("share", "total", "dropped")
"""Why something was refused: the client's share, the total; or a connection made room for others."""
MOST: Final = 1 << 60
"""More than there is of anything."""


class BudgetStanding(NamedTuple):
    """How much of a resource is held, and may be."""

    held: int
    """By all clients."""
    total: int
    share: int
    """What one client may hold."""
    largest: int
    """What the client with most of it holds."""


class Holdings:
    """Who holds how much of one resource."""

    __slots__ = (
        "_held", "_kept", "_shares", "_sum", "measure", "on_change", "on_refused", "refusals", "reserve", "resource",
        "share", "total",
    )  # fmt: skip

    def __init__(self, resource: BudgetResource) -> None:
        self.resource = resource
        self._held: dict[Holder, int] = {}
        self._kept: dict[Holder, int] = {}
        """Of what the ledger keeps: what is written there. What is being written is held."""
        self._sum = 0
        self.refusals = dict.fromkeys(REACHED, 0)
        """What was reached -> how often somebody was refused for that."""
        self.measure: Callable[[], Mapping[Holder, int]] | None = None
        """Returns what each holds, where it is counted elsewhere; None: it is counted by :meth:`take`."""
        self.on_change: Callable[[], None] | None = None
        """Called when the bounds have changed."""
        self.on_refused: Callable[[str, str], None] | None = None
        """Called with the resource and what was reached: ``share``, ``total``, or ``dropped``: made room for others."""
        self.configure(resource.total, 1.0, 0.0, {})

    def configure(self, total: int, share: float, reserve: float, shares: Mapping[str, float], one: int = 1) -> None:
        """Change the bounds. What is held over them stays held.

        Args:
            total: how much there is.
            share: the part of the total that one client may hold, more than 0, at most 1.
            reserve: the part of the total that only clients with ``admin`` may use, from 0, less than 1.
            shares: client -> its part, where it has one of its own.
            one: what any client that holds nothing may take, in spite of its part and of reservations.
        """
        self.total = total
        self.share = max(one, int(total * share)) if self.resource.is_split else total
        self.reserve = max(0, min(int(total * reserve), total - one))
        self._shares = {name: max(one, int(total * part)) for name, part in shares.items()}
        if self.on_change is not None:
            self.on_change()

    def share_of(self, client: ShareHolder) -> int:
        """Return how much the client may hold."""
        if client.is_alone:
            return self.total
        return self._shares.get(client.name, self.share) if client.kind == "client" else self.share

    def room_of(self, client: ShareHolder) -> int:
        """Return how much more the client may take now; 0 or less: nothing."""
        return min(self.share_of(client) - self.held_by(client), self._bound(client) - self._sum)

    def take(self, client: ShareHolder, amount: int = 1, *, forced: bool = False) -> None:
        """Take an amount of the resource for a client.

        Args:
            forced: whether there is room or not: the client has it already.

        Raises:
            BudgetExceeded: the client would hold more than its share.
            Overloaded: so much is not left for anybody.
        """
        if not amount:
            return
        name, is_admin, is_alone, kind = client
        holder = kind, name
        mine = self._held.get(holder, 0)
        held = mine + self._kept.get(holder, 0) if self._kept else mine
        if not is_alone and held + amount > (share := self.share_of(client)) and not forced:
            self.count_refusal("share")
            raise self.exceeded(client, held, amount, share)
        bound = self.total if is_admin else self.total - self.reserve
        if self._sum + amount > bound and not forced:
            self.count_refusal("total")
            raise Overloaded(
                f"budget {self.resource.name}: {self._sum:,} of {self.total:,} {self.resource.what} are in use "
                f"({self.resource.setting}), and {self.reserve:,} are reserved for admin"
            )
        self._held[holder] = mine + amount
        self._sum += amount

    def take_share(self, client: ShareHolder, amount: int) -> bool:
        """Take an amount where the client holds nothing, or stays within its share with it; returns whether. The total
        is not looked at: this is for those who have a bound of their own."""
        holder = client.kind, client.name
        mine = self._held.get(holder, 0)
        held = mine + self._kept.get(holder, 0) if self._kept else mine
        if held and held + amount > self.share_of(client):
            return False
        self._held[holder] = mine + amount
        self._sum += amount
        return True

    def check(self, client: ShareHolder) -> int:
        """Return how much more the client may take now, at least 1. Raises as :meth:`take` where that is nothing."""
        with self.hold(client):
            pass
        return max(1, self.room_of(client))

    def give(self, client: ShareHolder, amount: int = 1) -> None:
        """Give back an amount that the client has taken."""
        if not amount:
            return
        holder = client.kind, client.name
        left = self._held[holder] - amount
        if left > 0:
            self._held[holder] = left
        else:
            del self._held[holder]
        self._sum -= amount

    def keep(self, client: str, amount: int) -> None:
        """Count what the ledger keeps for a client from now on; below 0: no more. It is never refused."""
        holder: Holder = ("client", client)
        before = self._kept.get(holder, 0)
        after = max(0, before + amount)  # what another process wrote may not be counted yet
        if after:
            self._kept[holder] = after
        else:
            self._kept.pop(holder, None)
        self._sum += after - before

    def recount(
        self, counts: Mapping[str, int], added: Mapping[str, int] = NOTHING, removed: Mapping[str, int] = NOTHING
    ) -> None:
        """Correct what is counted by :meth:`keep`.

        Args:
            counts: what the ledger was found to keep.
            added: what was added while it was counted. Nobody can tell how much of it was found.
            removed: the same of what was removed.
        """
        kept: dict[Holder, int] = {}
        for client in {*counts, *(name for _, name in self._kept)}:
            holder: Holder = ("client", client)
            found = counts.get(client, 0)
            least, most = found - removed.get(client, 0), found + added.get(client, 0)
            if (count := min(max(self._kept.get(holder, 0), least), most)) > 0:
                kept[holder] = count
        self._sum += sum(kept.values()) - sum(self._kept.values())
        self._kept = kept

    @contextmanager
    def hold(self, client: ShareHolder, amount: int = 1) -> Iterator[None]:
        """Take an amount as long as the block. Raises as :meth:`take`."""
        self.take(client, amount)
        try:
            yield
        finally:
            self.give(client, amount)

    def exceeded(self, client: ShareHolder, held: int, amount: int, share: int) -> BudgetExceeded:
        """Return the error of a client at its share, for those who count elsewhere, too."""
        name = self.resource.name
        more = f" and asks for {amount:,} more" if amount > 1 else ""
        who = f"{client.name!r}" if client.kind == "client" else f"the {client.kind} {client.name!r}"
        return BudgetExceeded(
            f"budget {name}: {who} holds {held:,} {self.resource.what}{more}; its share is {share:,} of "
            f"{self.total:,}. {self.resource.advice}"
        )

    def held_by(self, client: ShareHolder) -> int:
        """Return how much the client holds."""
        holder = client.holder
        return self._held.get(holder, 0) + self._kept.get(holder, 0)

    def largest(self, count: int) -> list[tuple[ShareHolder, int]]:
        """Return the clients that hold most, with what they hold."""
        most = sorted(self._all().items(), key=lambda pair: (-pair[1], pair[0]))[:count]
        return [(ShareHolder(name, kind=kind), held) for (kind, name), held in most]

    def standing(self) -> BudgetStanding:
        """Return how much is held."""
        largest = max(self._all().values(), default=0)
        return BudgetStanding(self.held, self.total, self.share, largest)

    def _all(self) -> Mapping[Holder, int]:
        """Client -> what it holds."""
        if self.measure is not None:
            return self.measure()
        if not self._kept:
            return self._held
        return {holder: self._held.get(holder, 0) + self._kept.get(holder, 0) for holder in self._held | self._kept}

    @property
    def held(self) -> int:
        """How much all clients hold."""
        return self._sum if self.measure is None else sum(self.measure().values())

    def has_room(self, client: ShareHolder) -> bool:
        """Whether there is more of it for such a client, without regard to its share."""
        return self._sum < self._bound(client)

    def count_refusal(self, reached: str) -> None:
        """Count that somebody was refused, for those who find out on their own. ``reached``: see :attr:`on_refused`."""
        self.refusals[reached] += 1
        if self.on_refused is not None:
            self.on_refused(self.resource.name, reached)

    def _bound(self, client: ShareHolder) -> int:
        return self.total if client.is_admin else self.total - self.reserve


@dataclass(frozen=True, slots=True)
class BudgetBounds:
    """What the configuration says of budgets."""

    share: float = 0.25
    """The part of each total that one client may hold, more than 0, at most 1."""
    reserve: float = 0.1
    """The part of each total that only clients with ``admin`` may use, from 0, less than 1."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Resource -> its total, where it is not that of the table."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Resource -> the part that one client may hold of it, where it is not ``share``."""
    clients: Mapping[str, float] = field(default_factory=dict)
    """Client -> the part that it may hold of each resource, where it has one of its own."""
    ones: Mapping[str, int] = field(default_factory=dict)
    """Resource -> what any client that holds nothing may take of it, where that is more than 1."""


class Budgets:
    """The holdings of all resources."""

    def __init__(self, bounds: BudgetBounds | None = None, most: Mapping[str, int] | None = None) -> None:
        """``most``: resource -> the most that can exist, above all bounds."""
        self._most = most or {}
        self._holdings = {row.name: Holdings(row) for row in RESOURCES.values()}
        self.configure(bounds or BudgetBounds())

    def configure(self, bounds: BudgetBounds) -> None:
        """Change the bounds. What is held over them stays held."""
        for name, holdings in self._holdings.items():
            total = min(bounds.totals.get(name, holdings.resource.total), self._most.get(name, MOST))
            share, one = bounds.shares.get(name, bounds.share), bounds.ones.get(name, 1)
            holdings.configure(total, share, bounds.reserve, bounds.clients, one)

    def __getitem__(self, name: str) -> Holdings:
        return self._holdings[name]

    def watch(self, on_refused: Callable[[str, str], None]) -> None:
        """Call back at each refusal, as :attr:`Holdings.on_refused` says."""
        for holdings in self._holdings.values():
            holdings.on_refused = on_refused

    def all(self) -> Iterable[Holdings]:
        """Return the holdings in the order of the table."""
        return self._holdings.values()
