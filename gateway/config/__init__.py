"""Settings: one TOML file, overridden by environment variables, overridden by command-line options.

Every setting is a field of one of the structs below, with its unit and default; ``docs/reference/settings.md`` is
checked against them. An unknown key is refused, with the name of the key and of the table it stood in.
"""

from __future__ import annotations

from gateway.config.access import (
    JWT_CLIENT,
    AccessSettings,
    ApiKeySettings,
    CertificateSettings,
    LoginSettings,
    TokenSettings,
)
from gateway.config.base import Name, Port, Seconds, Settings
from gateway.config.bounds import budget_bounds
from gateway.config.bridges import BridgePlace, BridgeSettings, BridgeSource, BridgeTarget, check_bridge
from gateway.config.brokers import (
    DEFAULT_PORTS,
    LOCAL_BROKERS,
    BrokerSettings,
    BrokerUrl,
    ManagementUrl,
    TlsSettings,
    check_broker,
    parse_broker_url,
    parse_host,
    parse_management_url,
)
from gateway.config.budgets import BudgetSettings
from gateway.config.document import Config, asks_for_credentials
from gateway.config.endpoints import EndpointAuth, EndpointSettings, EndpointTls
from gateway.config.fronts import FrontSettings, FrontTls, FrontUser, check_front
from gateway.config.ledger import AuditSettings, ClusterSettings, LedgerSettings, PipelineSettings, RetentionSettings
from gateway.config.loading import ENVIRONMENT, broker_names, load
from gateway.config.service import (
    EmbeddedSettings,
    EmbeddedTls,
    EmbeddedUser,
    HttpSettings,
    HttpTls,
    OpsSettings,
    OutboundSettings,
    TracingSettings,
)
from gateway.config.subscriptions import SubscriptionFilter, SubscriptionSettings, check_subscription
from gateway.config.taps import TapSettings, check_tap

__all__ = [
    "DEFAULT_PORTS",
    "ENVIRONMENT",
    "JWT_CLIENT",
    "LOCAL_BROKERS",
    "AccessSettings",
    "ApiKeySettings",
    "AuditSettings",
    "BridgePlace",
    "BridgeSettings",
    "BridgeSource",
    "BridgeTarget",
    "BrokerSettings",
    "BrokerUrl",
    "BudgetSettings",
    "CertificateSettings",
    "ClusterSettings",
    "Config",
    "EmbeddedSettings",
    "EmbeddedTls",
    "EmbeddedUser",
    "EndpointAuth",
    "EndpointSettings",
    "EndpointTls",
    "FrontSettings",
    "FrontTls",
    "FrontUser",
    "HttpSettings",
    "HttpTls",
    "LedgerSettings",
    "LoginSettings",
    "ManagementUrl",
    "Name",
    "OpsSettings",
    "OutboundSettings",
    "PipelineSettings",
    "Port",
    "RetentionSettings",
    "Seconds",
    "Settings",
    "SubscriptionFilter",
    "SubscriptionSettings",
    "TapSettings",
    "TlsSettings",
    "TokenSettings",
    "TracingSettings",
    "asks_for_credentials",
    "broker_names",
    "budget_bounds",
    "check_bridge",
    "check_broker",
    "check_front",
    "check_subscription",
    "check_tap",
    "load",
    "parse_broker_url",
    "parse_host",
    "parse_management_url",
]
