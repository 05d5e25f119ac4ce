"""The other processes on the same ledger: who they are, what they share, and how they are asked.

Each process has a port for the others and no one else, which ``gateway.api.resources.peers`` serves. A request to it is
authenticated by an HMAC-SHA256 under a key that only the replicas have, over method, path, receiver, time, nonce and
body; the answer by one over status, body and that nonce. So nothing can be forged, changed, sent to another replica, or
sent twice; it is not encrypted, and belongs on a network of their own, or into a tunnel.

All secrets that the replicas share come from one: that of ``cluster.secret_file``, or one that is made on first use and
kept in the ledger.

Beside SQLite there is nobody: no port is opened, and the secret is that of the process.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.config import ClusterSettings, Config
from gateway.errors import ConfigurationError, PeerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.work import Peer
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import wall_time
from gateway.runtime.ids import ids
from gateway.runtime.tasks import Tasks
from gateway.runtime.threads import threads

if TYPE_CHECKING:
    import httpx

ID: Final = 8
"""Octets of the id of a process."""
CONNECT_WITHIN: Final = 2.0
"""How long another process may take to accept a connection, in seconds."""
ANSWER_WITHIN: Final = 30.0
"""And to answer, body included."""
TELL_WITHIN: Final = 2.0
"""How long it may take to notify another process of a change that it would notice anyway."""
CONNECTIONS: Final = 32
"""Most requests to other processes at once; more wait."""
ANSWER_MAX: Final = 64 << 20
"""Largest body of an answer, in octets."""
CLOCKS: Final = 60.0
"""How far the clocks of two processes may be apart, in seconds: no request is taken that is older, or younger."""
NONCES: Final = 100_000
"""How many requests of that time are remembered; beyond that none is taken."""
SECRET_MIN: Final = 32
"""Shortest secret in a file, in octets."""
LOST: Final = "LEASE_LOST"
UNSEALED: Final = "the seal is not that of the cluster's secret"
REPEATED: Final = "it was there before"
STRANGE: Final = frozenset({UNSEALED, REPEATED})
"""Refusals of requests that need not be from a process that has the secret: no answer to them is sealed."""
_OWN: Final = (
    "role", "http.host", "http.port", "ops", "cluster", "data_dir", "log_level", "embedded.host", "embedded.port",
    "audit",
)  # fmt: skip
"""Settings that differ from process to process."""

Listener = Callable[[Mapping[str, Any]], None]
Settle = Callable[..., Awaitable[Sequence[tuple[str, str]]]]


class PeerAnswer(msgspec.Struct):
    """What another process answered."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class SettleRequest(msgspec.Struct):
    """``settle``: end, or extend, leases that another process holds."""

    verb: str
    subscription: str
    ack_ids: list[str]
    arguments: dict[str, Any] = {}


class TellRequest(msgspec.Struct):
    """``tell``: something has changed."""

    topic: str
    news: dict[str, Any] = {}


class Seal:
    """Makes and checks the HMACs of requests and answers."""

    def __init__(self, key: bytes, clock: Callable[[], float] = wall_time) -> None:
        self._key = key
        self._clock = clock
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def headers(self, method: str, path: str, sender: bytes, receiver: bytes, body: bytes) -> dict[str, str]:
        """What a request carries. The nonce is in ``x-peer-nonce``."""
        at, nonce = f"{self._clock():.3f}", ids.random_bytes(16).hex()
        return {
            "x-peer-from": sender.hex(),
            "x-peer-to": receiver.hex(),
            "x-peer-time": at,
            "x-peer-nonce": nonce,
            "x-peer-length": str(len(body)),
            "x-peer-head": self._head(method, path, sender.hex(), receiver.hex(), at, nonce, str(len(body))),
            "x-peer-seal": self._request(method, path, sender.hex(), receiver.hex(), at, nonce, body),
        }

    def announced(self, method: str, path: str, receiver: bytes, headers: Mapping[bytes, bytes]) -> int | None:
        """Return how long the body is, in bytes, from the sealed head, before any of the body is read. A head counts
        once: nobody who has overheard one holds a place with it.

        Returns:
            None if nobody who shares the secret says so now, or it is a process of a release before this one.
        """
        names = ("from", "to", "time", "nonce", "length")
        fields = [headers.get(b"x-peer-" + name.encode(), b"").decode("latin-1") for name in names]
        sealed = hmac.compare_digest(self._head(method, path, *fields).encode(), headers.get(b"x-peer-head", b""))
        if not sealed or fields[1] != receiver.hex() or abs(self._clock() - float(fields[2])) > CLOCKS:
            return None
        return int(fields[4]) if not self._take(fields[3]) else None

    def check(
        self,
        method: str,
        path: str,
        receiver: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        *,
        is_announced: bool = False,
    ) -> str:
        """Return why a request is not taken; empty: it is. One that is taken is not taken again.

        Args:
            is_announced: its head has counted (:meth:`announced`).
        """
        fields = {
            name: headers.get(b"x-peer-" + name.encode(), b"").decode("latin-1")
            for name in ("from", "to", "time", "nonce", "seal")
        }
        expected = self._request(
            method, path, fields["from"], fields["to"], fields["time"], fields["nonce"], body
        )  # fmt: skip
        if not hmac.compare_digest(expected.encode(), fields["seal"].encode("latin-1")):
            return UNSEALED
        if fields["to"] != receiver.hex():
            return "for another process"
        now = self._clock()
        if abs(now - float(fields["time"])) > CLOCKS:  # sealed, so it is a number
            return f"the clocks of the two processes are {abs(now - float(fields['time'])):.0f} s apart"
        return "" if is_announced else self._take(fields["nonce"])

    def _take(self, text: str) -> str:
        """Remember a nonce. Returns why it does not count, if it does not."""
        now = self._clock()
        while self._seen and now - next(iter(self._seen.values())) > 2 * CLOCKS:
            self._seen.popitem(last=False)
        nonce = bytes.fromhex(text)  # sealed, so it is one
        if nonce in self._seen:
            return REPEATED
        if len(self._seen) >= NONCES:
            return "too many requests"
        self._seen[nonce] = now
        return ""

    def answer(self, nonce: str, status: int, body: bytes) -> str:
        """The seal of an answer to the request with this nonce."""
        return self._make(b"answer", nonce.encode("latin-1"), b"%d" % status, body)

    def _request(self, method: str, path: str, sender: str, receiver: str, at: str, nonce: str, body: bytes) -> str:
        fields = (method, path, sender, receiver, at, nonce)
        return self._make(b"request", *(field.encode("latin-1") for field in fields), body)

    def _head(self, *fields: str) -> str:
        return self._make(b"head", *(field.encode("latin-1") for field in fields))

    def _make(self, *parts: bytes) -> str:
        mac = hmac.new(self._key, digestmod=sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8, "big"))
            mac.update(part)
        return mac.hexdigest()


class Peers:
    """The processes on the ledger, this one included. All methods belong to the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: Metrics,
        settings: ClusterSettings | None = None,
        *,
        name: str = "",
        config: str = "",
        secret: bytes | None = None,
    ) -> None:
        """``secret`` None: one of this process. ``config``: a digest of the configuration, as :func:`digest` makes
        it."""
        self._ledger = ledger
        self._metrics = metrics
        self._settings = settings if settings is not None else ClusterSettings()
        self._secret = secret if secret is not None else ids.random_bytes(SECRET_MIN)
        self._config = config
        self._found: dict[int, Peer] = {}
        self._listeners: dict[str, Listener] = {}
        self._client: httpx.AsyncClient | None = None
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._telling = Tasks("news for other processes")
        self._differs: frozenset[bytes] = frozenset()
        self.seal = Seal(self.key("peers"))
        self.settle_here: Settle | None = None
        """Called with verb, subscription and ack ids, and with the other arguments by name, for leases of this process:
        what became of each."""
        self.me = Peer(ids.random_bytes(ID), 0, 0, name, "", config, frozenset())
        """This process, as the others see it."""

    @property
    def shared(self) -> bool:
        """There may be others."""
        return self._ledger.work.shared

    def key(self, purpose: str) -> bytes:
        """32 octets for one purpose, the same at all replicas."""
        return blake2b(self._secret, digest_size=32, person=purpose.encode()[:16]).digest()

    def reached_at(self, url: str) -> None:
        """Where the others reach this process, once its port is open."""
        self.me = msgspec.structs.replace(self.me, url=self._settings.url or url)

    def configured(self, config: str) -> None:
        """The configuration is another one, of which this is the digest. The others learn it at the next look."""
        self._config = config
        self.me = msgspec.structs.replace(self.me, config=config)

    def digest(self, config: Config) -> str:
        """What stands for a configuration among the replicas."""
        return digest(config, self._secret)

    def describe(self, shard: int, fence: int, kinds: frozenset[str]) -> Peer:
        """This process under its lease, and with the kinds of work that it takes."""
        self.me = msgspec.structs.replace(self.me, shard=shard, fence=fence, kinds=kinds)
        return self.me

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._telling.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # ------------------------------------------------------------------------------------------ who there is

    def found(self, peers: Sequence[Peer]) -> None:
        """All that live, as the ledger says."""
        self._found = {peer.shard: peer for peer in peers}
        self._metrics.peers.set(len(self._found))
        differ = frozenset(peer.id for peer in peers if peer.config != self._config)
        self._metrics.config_differs.set(len(differ))
        for peer in peers:
            if peer.id in differ - self._differs:
                log("cluster.config_differs", logging.WARNING, process=peer.name, url=peer.url)
        self._differs = differ

    @property
    def others(self) -> list[Peer]:
        """All but this process, as they were when it was looked last."""
        return [peer for peer in self._found.values() if peer.id != self.me.id]

    async def of_shard(self, shard: int) -> Peer | None:
        """The process that writes to a shard. Raises LedgerUnavailable."""
        if shard not in self._found:
            await self._look()
        return self._found.get(shard)

    async def of_id(self, owner: bytes) -> Peer | None:
        """A process by its id; None: it does not live any more. Raises LedgerUnavailable."""
        for _ in range(2):
            for peer in self._found.values():
                if peer.id == owner:
                    return peer
            await self._look()
        return None

    async def _look(self) -> None:
        self.found((await self._ledger.work.view()).peers)

    # ------------------------------------------------------------------------------------------------ asking

    async def request(self, peer: Peer, path: str, body: bytes, within: float = ANSWER_WITHIN) -> PeerAnswer:
        """Ask another process: POST ``body`` to ``path`` of its port.

        Raises:
            PeerUnavailable: it did not answer, or not as one of us does. It may have done what it was asked for.
        """
        import httpx  # here, since only who has peers needs it

        if self._client is None:
            self._client = httpx.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                timeout=httpx.Timeout(within, connect=CONNECT_WITHIN),
                limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
                headers={"accept-encoding": "identity", "content-type": "application/msgpack"},
            )
        headers = self.seal.headers("POST", path, self.me.id, peer.id, body)
        verb = path.rpartition("/")[2]
        try:
            async with asyncio.timeout(within), self._room:
                url = peer.url.rstrip("/") + path
                async with self._client.stream("POST", url, content=body, headers=headers) as response:
                    answer = bytearray()
                    async for chunk in response.aiter_raw():
                        answer += chunk
                        if len(answer) > ANSWER_MAX:
                            raise PeerUnavailable(f"{peer.name}: its answer is over {ANSWER_MAX} octets")
                    seal = self.seal.answer(headers["x-peer-nonce"], response.status_code, bytes(answer))
                    given = response.headers.get("x-peer-seal", "").encode("utf-8", "replace")
                    if not hmac.compare_digest(seal.encode(), given):
                        said = f" and says {bytes(answer[:80])!r}" if "x-peer-seal" not in response.headers else ""
                        raise PeerUnavailable(
                            f"{peer.name}: its answer ({response.status_code}) is not sealed by our secret{said}"
                        )
                    if response.status_code != 200:
                        raise PeerUnavailable(f"{peer.name}: {bytes(answer[:200]).decode('utf-8', 'replace')}")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            self._metrics.peer_requests.labels(verb, "failed").inc()
            what = str(error) or type(error).__name__
            raise PeerUnavailable(f"{peer.name} at {peer.url}: {what}") from error
        except PeerUnavailable:
            self._metrics.peer_requests.labels(verb, "failed").inc()
            raise
        self._metrics.peer_requests.labels(verb, "answered").inc()
        return PeerAnswer(response.status_code, [], bytes(answer))

    async def settle(
        self, owner: bytes, verb: str, subscription: str, ack_ids: Sequence[str], **arguments: Any
    ) -> list[tuple[str, str]]:
        """Have broker leases of another process settled by it. ``owner``: its id, as the ack ids name it. Each ack id
        with what became of it; ``LEASE_LOST`` where the process is gone, and its leases with it.

        Raises:
            PeerUnavailable: it did not answer. It lives, or has got the request: the leases may be settled.
            LedgerUnavailable: it cannot be found out whether it lives.
        """
        peer = await self.of_id(owner) if self.shared else None
        if peer is None or peer.id == self.me.id:
            return [(ack_id, LOST) for ack_id in ack_ids]
        request = SettleRequest(verb, subscription, list(ack_ids), arguments)
        try:
            answer = await self.request(peer, "/peer/settle", msgspec.msgpack.encode(request))
        except PeerUnavailable as error:
            await self._look()
            if _never_sent(error) and not any(other.id == owner for other in self._found.values()):
                return [(ack_id, LOST) for ack_id in ack_ids]
            raise
        return msgspec.msgpack.decode(answer.body, type=list[tuple[str, str]])

    def tell(self, topic: str, news: Mapping[str, Any]) -> None:
        """Tell all other processes that something has changed. A process that is not reached finds out later."""
        if others := [peer for peer in self.others if peer.url]:
            body = msgspec.msgpack.encode(TellRequest(topic, dict(news)))
            for peer in others:
                self._telling.start(self._tell(peer, body))

    async def _tell(self, peer: Peer, body: bytes) -> None:
        with suppress(PeerUnavailable):
            await self.request(peer, "/peer/tell", body, TELL_WITHIN)

    def listen(self, topic: str, listener: Listener) -> None:
        """Call ``listener`` with what other processes tell of ``topic``. It must not raise."""
        self._listeners[topic] = listener

    def heard(self, request: TellRequest) -> None:
        """Another process told us something."""
        if (listener := self._listeners.get(request.topic)) is not None:
            listener(request.news)

    async def settled(self, request: SettleRequest) -> list[tuple[str, str]]:
        """Another process was given ack ids of this one."""
        if self.settle_here is None:
            return [(ack_id, LOST) for ack_id in request.ack_ids]
        done = await self.settle_here(request.verb, request.subscription, request.ack_ids, **request.arguments)
        return [(ack_id, status) for ack_id, status in done]


def _never_sent(error: PeerUnavailable) -> bool:
    """Whether no connection was there to send the request on. Else a process that is gone by now may have done what it
    was asked for."""
    import httpx  # as in request

    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout | httpx.InvalidURL)


def digest(config: Config, secret: bytes) -> str:
    """What stands for a configuration among the replicas: those that differ in more than their own ports and folders
    have another one. Nobody who lacks the secret learns anything from it."""
    settings = msgspec.to_builtins(config)
    for name in _OWN:
        section, _, setting = name.partition(".")
        if setting:
            settings.get(section, {}).pop(setting, None)
        else:
            settings.pop(section, None)
    ordered = msgspec.json.encode(settings, order="deterministic")
    return blake2b(ordered, digest_size=16, key=secret[:64], person=b"config").hexdigest()


async def shared_secret(ledger: Ledger, settings: ClusterSettings) -> bytes:
    """The secret that all replicas share.

    Raises:
        ConfigurationError: the file cannot be read, or holds too little.
        LedgerUnavailable: it cannot be read from the ledger.
    """
    if not settings.secret_file:
        return await ledger.work.secret("cluster")
    try:
        secret = (await threads.run(Path(settings.secret_file).read_bytes)).strip()
    except OSError as error:
        raise ConfigurationError(f"cluster.secret_file {settings.secret_file}: {error.strerror}") from None
    if len(secret) < SECRET_MIN:
        raise ConfigurationError(
            f"cluster.secret_file {settings.secret_file}: holds {len(secret)} octets, not at least {SECRET_MIN}"
        )
    return sha256(secret).digest()
