"""``/v1/fronts``: the ports for AMQP clients, and who is connected to them."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from gateway.api.about.schemas import Output, PageQuery
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.errors import NoSuchFront, NoSuchFrontClient
from gateway.front.client import FrontClient
from gateway.front.counts import DELIVERIES, PUBLISHES, REWRITES
from gateway.front.server import Front


class FrontConnection(Output, omit_defaults=False):
    """A connection of a front to a broker, which its clients share."""

    broker: str
    """Name of the broker."""
    login: str
    """The user that the broker sees."""
    up: bool
    """Whether the connection is open."""
    blocked: str
    """Why the broker takes no publishes; empty: it does."""
    product: str
    """Name of the broker's product, as it says."""
    product_version: str
    """Version of the product, as the broker says."""
    clients: int
    """Clients that use the connection."""
    channels: int
    """Channels that the front has open on it."""
    restores: int
    """How often the connection was lost and opened again."""
    rules: list[str]
    """The rewriting rules for this broker."""


class FrontRefusal(Output, omit_defaults=False):
    """Requests that were refused."""

    operation: str
    """The operation that was refused, such as ``queue.declare``."""
    code: int
    """The AMQP reply code."""
    count: int
    """How many of these requests were refused."""


class FrontView(Output, omit_defaults=False):
    """A port for AMQP clients. Counts are those of the process that was asked, since it started."""

    name: str
    """Name of the front."""
    host: str
    """Address that it listens on."""
    port: int
    """Port that it listens on."""
    tls: bool
    """Whether clients connect with TLS."""
    login: str
    """Who checks logins: `gateway`, or the broker (`pass`)."""
    versions: list[str]
    """The AMQP versions that clients may speak."""
    virtual_hosts: dict[str, str]
    """The broker of each virtual host, by name."""
    clients: int
    """How many clients have logged in."""
    connections: list[FrontConnection]
    """Its connections to brokers."""
    publishes: dict[str, int]
    """Publishes, by outcome."""
    deliveries: dict[str, int]
    """Deliveries, by event."""
    rewrites: dict[str, int]
    """Requests that were rewritten, by rule."""
    refusals: list[FrontRefusal]
    """Requests that were refused, by operation and reply code."""
    logins_refused: int
    """Logins that were refused."""
    store: str
    """Which publishes go to the ledger: none (`never`), those that come while the broker is away (`when-down`), or all
    (`always`)."""
    stored_bytes: int
    """Of publishes that wait in the ledger for a broker, now."""
    unconfirmed_bytes: int
    """Bytes of publishes that the broker has not answered."""
    held_bytes: int
    """Bytes of deliveries that wait for their clients."""


class FrontList(Output, omit_defaults=False):
    """All of them."""

    fronts: list[FrontView]
    """The fronts."""


class FrontClientView(Output, omit_defaults=False):
    """A client of a front."""

    client: int
    """Number of the client. ``DELETE`` closes it by this number."""
    user: str
    """The user that the client logged in as."""
    address: str
    """The address that the client connected from."""
    version: str
    """The AMQP version that the client speaks."""
    product: str
    """Name of the client's product, as it says."""
    product_version: str
    """Version of the client's product, as it says."""
    virtual_host: str
    """The virtual host that the client opened."""
    broker: str
    """Name of the broker that serves it."""
    since: str
    """When the client connected, RFC 3339."""
    channels: int
    """Channels that the client has open."""
    consumers: int
    """Consumers of the client."""
    unacknowledged: int
    """Deliveries that the client has not settled."""
    unconfirmed: int
    """Publishes of the client that the broker has not answered."""
    waiting: int
    """Requests that wait for the broker, or for their turn."""
    rewrites: dict[str, int]
    """Requests of this client that were rewritten, by rule."""


class FrontClients(Output, omit_defaults=False):
    """A page of clients."""

    clients: list[FrontClientView]
    """The clients of this page."""


async def list_fronts(call: Call) -> Response:
    """All of this process."""
    return answer(FrontList(fronts=[_front(each) for each in call.fronts.values()]))


async def get_front(call: Call) -> Response:
    """One of them."""
    return answer(_front(_named(call)))


async def list_front_clients(call: Call) -> Response:
    """Clients that have logged in, in the order in which they came."""
    query = call.query(PageQuery)
    clients = [each for number, each in sorted(_named(call).clients.items()) if each.open]
    if query.cursor:
        if not query.cursor.isdecimal():
            raise wrong_parameter("cursor", "it was not given by a page of this list")
        clients = [each for each in clients if each.number > int(query.cursor)]
    page = clients[: query.limit]
    cursor = str(page[-1].number) if len(clients) > query.limit else None
    return answer(
        FrontClients(clients=[_client(each) for each in page]), headers=page_headers(call, cursor, limit=query.limit)
    )


async def close_front_client(call: Call) -> Response:
    """End the connection of one client (connection.close 320)."""
    front, name = _named(call), call.names["client"]
    if not name.isdecimal() or not front.close_client(int(name[:20])):
        raise NoSuchFrontClient(f"the front {front.name!r} has no client {name!r}")
    return Response(status_code=204)


def _named(call: Call) -> Front:
    front = call.fronts.get(call.names["front"])
    if front is None:
        raise NoSuchFront(f"there is no front {call.names['front']!r} in this process")
    return front


def _front(front: Front) -> FrontView:
    settings, counts = front.settings, front.counts
    counts.show()
    return FrontView(
        name=front.name,
        host=settings.host,
        port=front.port,
        tls=bool(settings.tls.cert_file),
        login=settings.login,
        versions=[version.value for version in front.session_configs],
        virtual_hosts=settings.virtual_hosts or {"/": settings.broker},
        clients=sum(each.open for each in front.clients.values()),
        connections=[
            FrontConnection(
                broker=login.broker,
                login=printable(link.login),
                up=link.is_up,
                blocked=printable(link.blocked or ""),
                product=printable(link.target.capabilities.product),
                product_version=printable(link.target.capabilities.product_version),
                clients=len(link.clients),
                channels=link.channels,
                restores=link.restores,
                rules=sorted({rule.name for rules in link.rules.values() for rule in rules}),
            )
            for login, links in front.pool.links.items()
            for link in links
        ],
        publishes=counts.of(PUBLISHES),
        deliveries=counts.of(DELIVERIES),
        rewrites=counts.of(REWRITES),
        refusals=[
            FrontRefusal(operation=operation, code=code, count=number)
            for (operation, code), number in sorted(counts.refused_operations.items())
        ],
        logins_refused=counts.logins_refused,
        store=settings.store,
        stored_bytes=counts.stored_bytes,
        unconfirmed_bytes=counts.unconfirmed_bytes,
        held_bytes=counts.held_bytes,
    )


def _client(client: FrontClient) -> FrontClientView:
    known, channels = client.session.capabilities, list(client.channels.values())
    return FrontClientView(
        client=client.number,
        user=printable(client.user),
        address=client.address,
        version=client.session.version.value,
        product=printable(known.product),
        product_version=printable(known.product_version),
        virtual_host=printable(client.access.virtual_host),
        broker=client.access.broker,
        since=moment(client.since),
        channels=len(channels),
        consumers=sum(len(each.consumers) for each in channels),
        unacknowledged=client.unacknowledged,
        unconfirmed=sum(each.unconfirmed for each in channels),
        waiting=len(client.backlog),
        rewrites=dict(client.rewrites),
    )


_PATH: Final = "/v1/fronts/{front}"
_TEXT: Final[dict[str, Any]] = {
    "description": "Of the process that was asked: each process has its own ports and clients.", "tag": "fronts",
}  # fmt: skip

ROUTES = (
    Route(
        "GET", "/v1/fronts", "list_fronts", "List fronts", list_fronts, Scope.ADMIN,
        {200: ("The fronts.", FrontList)}, **_TEXT,
    ),
    Route(
        "GET", _PATH, "get_front", "Read a front", get_front, Scope.ADMIN,
        {200: ("The front: settings, connections, counts.", FrontView)}, codes=("no_such_front",), **_TEXT,
    ),
    Route(
        "GET", f"{_PATH}/clients", "list_front_clients", "List the clients of a front", list_front_clients, Scope.ADMIN,
        {200: ("A page, in the order in which they came.", FrontClients)}, query=PageQuery,
        codes=("no_such_front", "invalid_parameter"), **_TEXT,
    ),
    Route(
        "DELETE", f"{_PATH}/clients/{{client}}", "close_front_client", "Close the connection of a client",
        close_front_client, Scope.ADMIN, {204: ("Its connection is being closed, with 320.", None)},
        codes=("no_such_front", "no_such_front_client"), **_TEXT,
    ),
)  # fmt: skip
"""The operations of this module."""
