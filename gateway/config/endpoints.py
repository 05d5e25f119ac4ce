"""Settings of endpoints that messages are pushed to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.config.base import OLD_NAME, Settings


class EndpointAuth(Settings, frozen=True):
    """``auth`` of an endpoint: who we say that we are. Secrets are shown to nobody again."""

    kind: Literal["none", "basic", "bearer", "oauth2"] = "none"
    """``oauth2``: client credentials (RFC 6749 section 4.4)."""
    user: str = ""
    """User of ``basic``, client id of ``oauth2``."""
    secret: str = ""
    """Password, token or client secret."""
    secret_file: str = ""
    """File that holds it instead; only in the configuration file."""
    token_url: str = ""
    """Where ``oauth2`` gets its tokens; under the same guard as the endpoint itself."""
    scope: str = ""
    """Scope to ask for."""


class EndpointTls(Settings, frozen=True):
    """``tls`` of an endpoint. Texts are PEM; files only in the configuration file."""

    ca: str = ""
    """Authorities that may sign its certificate; empty: the system's."""
    ca_file: str = ""
    """The same, in a file."""
    cert: str = ""
    """Client certificate, and the chain behind it."""
    cert_file: str = ""
    """The same, in a file."""
    key: str = ""
    """Key of the client certificate; empty: it is beside the certificate. Shown to nobody again."""
    key_file: str = ""
    """The same, in a file."""
    server_name: str = ""
    """Name to verify; empty: the host of the URL."""


class EndpointSettings(Settings, frozen=True):
    """``[endpoints.NAME]``, and the body of ``PUT /v1/endpoints/{name}``: where messages are pushed to."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "batch_wait": "batch_wait_seconds",
        "deadline": "deadline_seconds",
        "breaker_open_max": "breaker_open_max_seconds",
    }

    url: str
    """``https://…``; ``[outbound]`` says which URLs may be called."""
    format: Literal["json", "raw", "cloudevents-binary", "cloudevents-structured", "cloudevents-batch"] = "json"
    """``json``: an envelope as pull has it; ``raw``: the body as it is, the rest as ``Amqp-*`` headers; CloudEvents 1.0
    in their three forms."""
    batch_max: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Most messages of one request (``json`` and ``cloudevents-batch``)."""
    batch_wait_seconds: Annotated[float, Meta(ge=0, le=10)] | UnsetType = UNSET
    """How long a batch waits to be full, in seconds."""
    batch_wait: Annotated[float, Meta(ge=0, le=10), OLD_NAME] = 0.0
    """Old name of ``batch_wait_seconds``."""
    headers: dict[str, str] = {}
    """Headers of each request. Their values are kept and shown like secrets, but for a few that are not secret."""
    signing: tuple[Literal["v1", "v1a"], ...] = ("v1",)
    """Signatures of Standard Webhooks; the keys are made by the gateway. Empty: none."""
    auth: EndpointAuth = EndpointAuth()
    """How the gateway logs in to the endpoint."""
    tls: EndpointTls = EndpointTls()
    """Certificates for the connection to the endpoint."""
    deadline_seconds: Annotated[float, Meta(gt=0, le=300)] | UnsetType = UNSET
    """For a request: connecting, head and body of the answer together, in seconds."""
    deadline: Annotated[float, Meta(gt=0, le=300), OLD_NAME] = 15.0
    """Old name of ``deadline_seconds``."""
    schedule: tuple[Annotated[float, Meta(ge=0, le=30 * 86_400)], ...] = ()
    """Pause before each attempt, in seconds, the first included; empty: 0, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h,
    20 h, 24 h."""
    concurrency: Annotated[int, Meta(ge=1, le=100)] = 10
    """Most requests at once."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most requests a second; 0: no limit."""
    breaker_failures: Annotated[int, Meta(ge=1)] = 5
    """Failures in a row that open the circuit breaker."""
    breaker_open_max_seconds: Annotated[float, Meta(ge=1)] | UnsetType = UNSET
    """How long it is open at most, in seconds."""
    breaker_open_max: Annotated[float, Meta(ge=1), OLD_NAME] = 600.0
    """Old name of ``breaker_open_max_seconds``."""
    handshake: bool = False
    """Whether the endpoint must first allow us to call it, by the ``OPTIONS`` request of CloudEvents web hooks."""
    reply: bool = False
    """Whether the body of a 2xx answer is published to the message's reply-to."""
    source: str = ""
    """``source`` of CloudEvents; empty: ``/brokers/BROKER/queues/QUEUE``."""
    event_type: str = ""
    """``type`` of CloudEvents whose message does not say it; empty: ``amqp.message``."""
    paused: bool = False
    """It gets nothing until it is resumed."""
