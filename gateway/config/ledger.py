"""Settings of the ledger, of how long it keeps what, of the processes that share it, and of jobs that read it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.base import Port, Seconds, Settings


class LedgerSettings(Settings, frozen=True):
    """``[ledger]``: the SQL database that knows what happened to every message."""

    url: str = ""
    """``sqlite:///path`` or ``postgresql://user:password@host/database``; empty: ``ledger.db`` in the data folder."""
    intent: Literal["needed", "always"] = "needed"
    """``always`` writes an intent before every publish, not only where a key must be remembered."""
    shard_lease: Annotated[float, Meta(ge=1)] = 6.0
    """How long a silent process keeps its shard and its work, in seconds."""
    key_retention: Annotated[float, Meta(ge=60)] = 86_400.0
    """How long an Idempotency-Key is remembered, in seconds."""
    group_max: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Most rows of one group commit."""
    queue_max: Annotated[int, Meta(ge=1)] = 50_000
    """Most rows waiting for a commit; then callers wait."""
    disk_reserve: Annotated[int, Meta(ge=0, le=1 << 50)] = 256 << 20
    """Bytes of the disk of a ledger on SQLite that are kept for what was promised before, but at most 5 percent of the
    disk. While less is free, nothing new is promised: 507 ``ledger_full``. 0: none."""
    headers: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=16)] = ()
    """Names of AMQP headers that are remembered of each message, as text of at most 200 characters, so that messages
    can be found by them."""
    secrets_file: str = ""
    """File with the key under which secrets are sealed (AES-256-GCM), and from which the key of the MACs of the audit
    log is derived: 32 octets in base64; several lines: the first one seals, all of them open. Empty: ``secrets.key`` in
    the data folder, made at the first start. Gateways that share a ledger need the same one."""


class RetentionSettings(Settings, frozen=True):
    """``[retention]``: how long the ledger remembers."""

    history_days: Annotated[int, Meta(ge=1, le=3_650)] = 30
    """Days after which messages and their events go. Pending entries never expire."""
    statistics_days: Annotated[int, Meta(ge=1, le=3_650)] = 400
    """Days after which the counts per hour go."""
    audit_days: Annotated[int, Meta(ge=30, le=36_500)] = 400
    """Days after which rows of the audit log go; the chain of the others can be verified as before."""
    bodies: Literal["never", "until-settled", "days"] = "never"
    """Whether bodies of messages are kept for replays, beyond the pending ones. ``never``: they are not.
    ``until-settled``: until a consumer has settled the message. ``days``: for ``body_days``."""
    body_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """Days after which a body goes; with ``until-settled`` also that of a message which nobody settled."""
    body_max: Annotated[int, Meta(ge=0, le=64 << 20)] = 1 << 20
    """Largest body that is kept for replays, in octets."""
    log_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """Days after which spooled messages go, whether they were read or not. What all cursors of the message log have
    read goes at once."""
    log_octets: Annotated[int, Meta(ge=1 << 20, le=1 << 50)] = 10 << 30
    """How large the message log may be, in octets; what is more goes, the oldest first, whether it was read or not."""


class AuditSettings(Settings, frozen=True):
    """``[audit]``: where the gateway keeps the head of the audit log (number, hash and MAC of its newest row), and to
    whom it sends it. For how long rows are kept: ``retention.audit_days``."""

    head_file: str = ""
    """File with the newest row that this process knows of, written within a second after it. Keep it where nobody who
    can write to the database can write. Empty: ``audit.head`` in the data folder."""
    send_every: Annotated[float, Meta(ge=1)] = 3_600.0
    """Pause between two heads that are sent, in seconds."""
    send_log: bool = False
    """Whether each head is a line of the log, ``audit.head``."""
    send_file: str = ""
    """File to which each head is appended as a line of JSON; empty: none."""
    send_endpoint: str = ""
    """Endpoint that gets each head as a signed webhook; empty: none."""


class ClusterSettings(Settings, frozen=True):
    """``[cluster]``: several gateways on one PostgreSQL."""

    host: str = "127.0.0.1"
    """Address on which the other gateways reach this one."""
    port: Port = 0
    """Port for that; 0 takes any free port. With SQLite nobody listens."""
    url: str = ""
    """URL under which the others reach it; empty: ``http://HOST:PORT`` of the above."""
    secret_file: str = ""
    """File with the secret that all of them share, at least 32 octets; empty: one is made and kept in the ledger."""


class PipelineSettings(Settings, frozen=True):
    """``[pipeline]``: what the jobs of ``gateway pipeline`` work with. The service reads none of it."""

    url: str = "http://127.0.0.1:8080"
    """The gateway that the jobs work for."""
    api_key_file: str = ""
    """File that holds the API key, where the gateway has any; the key itself only comes in ``GATEWAY_API_KEY``."""
    direct: bool = False
    """Whether logs are read straight from the ledger, at ``ledger.url``, instead of over HTTP."""
    storage: str = "./gateway-pipeline"
    """Folder, or URL that Spark knows (``s3a://bucket/gateway``), of archive, rollups, checkpoints and reports."""
    archive: Literal["parquet", "delta"] = "parquet"
    """Format of the archive. ``parquet`` needs a file system; ``delta`` needs jars and works on object stores too."""
    jars: str = ""
    """Folder of Delta's jars; empty: ``.servers/delta`` where there is one."""
    scratch: str = ""
    """Folder for what a run needs only while it lasts; empty: the system's temporary folder."""
    master: str = "local[*]"
    """Where Spark runs: ``local[*]``, ``spark://HOST:PORT``, ``k8s://…``; ``spark-submit`` has its own."""
    memory: Annotated[str, Meta(pattern="^[1-9][0-9]*[mg]$")] = "2g"
    """Heap of the driver, which with ``local`` is all there is, in mebioctets (``m``) or gibioctets (``g``)."""
    spark: dict[str, str] = {}
    """Any other settings of Spark, by their name. They are shown in Spark's own pages: no secrets."""
    timeout: Annotated[float, Meta(gt=0)] = 60.0
    """How long the gateway may take for an answer, in seconds."""
    unavailable_timeout: Seconds = 120.0
    """How long a job waits for a gateway that was there and went away, in seconds."""
    rows_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 200_000
    """Most rows that one task reads at a time."""
