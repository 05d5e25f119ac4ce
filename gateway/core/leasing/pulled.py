"""What consumers get, and what becomes of what they send back."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.leasing.leases import Lease
from gateway.core.sources.stored import Stored
from gateway.errors import GatewayError
from gateway.upstreams import Delivery

SUCCESS = "SUCCESS"
INVALID = "INVALID_ACK_ID"
LOST = "LEASE_LOST"
FAILED = "FAILED"


@dataclass(slots=True, eq=False)
class LedgerLease:
    """A delivery of the ledger that is out."""

    ack_id: str
    delivery: bytes
    """Id of the delivery."""
    message_id: bytes
    number: int
    """Which lease of the delivery."""
    subscription: str
    broker: str


@dataclass(slots=True, eq=False)
class Pulled:
    """A message that is handed over, and its lease."""

    lease: Lease | LedgerLease
    id: bytes
    attempt: int | None
    """How often it was handed out, this time included; None: the broker holds the lease, and nobody counts."""
    delivery: Delivery | Stored
    """The message, and how it came."""
    first: bool
    """It came without an id of the gateway: this is where the gateway first took it."""
    resent: bool
    """Its publisher's gateway sent it again after an unknown outcome: it may be there twice."""
    redelivered: bool
    """It was handed over before, as the broker says, or as is remembered here."""


@dataclass(slots=True)
class AckOutcome:
    """What became of one ack id."""

    ack_id: str
    status: str
    """SUCCESS, INVALID_ACK_ID, LEASE_LOST, or FAILED with the error; a failed lease goes on."""
    error: GatewayError | None = None
