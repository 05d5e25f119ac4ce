"""The whole configuration file."""

from __future__ import annotations

from typing import Literal

from gateway.config.access import AccessSettings, ApiKeySettings
from gateway.config.base import Name, Settings
from gateway.config.bridges import BridgeSettings
from gateway.config.brokers import BrokerSettings
from gateway.config.budgets import BudgetSettings
from gateway.config.endpoints import EndpointSettings
from gateway.config.fronts import FrontSettings
from gateway.config.ledger import AuditSettings, ClusterSettings, LedgerSettings, PipelineSettings, RetentionSettings
from gateway.config.service import EmbeddedSettings, HttpSettings, OpsSettings, OutboundSettings, TracingSettings
from gateway.config.subscriptions import SubscriptionSettings
from gateway.config.taps import TapSettings


class Config(Settings, frozen=True):
    """The whole file."""

    role: Literal["all", "api", "worker"] = "all"
    """What this process does: ``api`` serves HTTP; ``worker`` does the work that one process at a time may do (bridges,
    pushed subscriptions, taps, replays, the outbox, pulls in order). ``api`` and ``worker`` need PostgreSQL."""
    http: HttpSettings = HttpSettings()
    ops: OpsSettings = OpsSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    ledger: LedgerSettings = LedgerSettings()
    data_dir: str = "./gateway-data"
    """Folder of the SQLite ledger."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe lines that are logged."""
    brokers: dict[Name, BrokerSettings] = {}
    fronts: dict[Name, FrontSettings] = {}
    api_keys: tuple[ApiKeySettings, ...] = ()
    access: AccessSettings = AccessSettings()
    budgets: BudgetSettings = BudgetSettings()
    outbound: OutboundSettings = OutboundSettings()
    tracing: TracingSettings = TracingSettings()
    cluster: ClusterSettings = ClusterSettings()
    retention: RetentionSettings = RetentionSettings()
    audit: AuditSettings = AuditSettings()
    subscriptions: dict[Name, SubscriptionSettings] = {}
    endpoints: dict[Name, EndpointSettings] = {}
    bridges: dict[Name, BridgeSettings] = {}
    taps: dict[Name, TapSettings] = {}
    pipeline: PipelineSettings = PipelineSettings()


def asks_for_credentials(config: Config) -> bool:
    """Whether callers of the API need a credential."""
    access = config.access
    return bool(access.required == "always" or config.api_keys or access.tokens.issuer or access.certificates)
