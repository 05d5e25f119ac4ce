"""Scopes of the configuration file that can match nothing."""

from __future__ import annotations

import logging

import pytest

from gateway.access import configured
from gateway.app import check_configuration
from gateway.config import AccessSettings, ApiKeySettings, BrokerSettings, CertificateSettings, Config, TokenSettings
from gateway.errors import ConfigurationError
from gateway.observing.telemetry import FIELDS

BROKERS = {"shop": BrokerSettings(url="amqp://h")}


def with_key(*scopes: str) -> Config:
    return Config(brokers=BROKERS, api_keys=(ApiKeySettings(name="till", key="k", scopes=scopes),))


@pytest.mark.parametrize("scope", ["publish:gone/x", "consume:gone/x", "broker:gone", "publish:shop/orders.*"])
def test_scopes_in_use_still_start_with_a_warning(scope: str, caplog: pytest.LogCaptureFixture) -> None:
    config = with_key("publish:shop/x", scope)
    check_configuration(config)
    with caplog.at_level(logging.WARNING):
        configured.warn(config)
    (record,) = caplog.records
    assert record.getMessage() == "access.scope_matches_nothing"
    fields = vars(record)[FIELDS]
    assert (fields["setting"], fields["scope"]) == ("api_keys.till", scope)


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        (
            "route:gone/x/#",
            "api_keys.till: the scope 'route:gone/x/#': it can match nothing: there is no broker",
        ),
        ("subscribe:gone/q", "there is no broker 'gone'. The brokers are: "),
        ("subscribe:shop/or*", "this names the one queue that is called 'or*'"),
    ],
)
def test_newer_scopes_are_refused(scope: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_configuration(with_key(scope))
    assert why in str(caught.value)


def test_certificates_and_tokens_as_well() -> None:
    certificate = CertificateSettings(client="c", name="CN:c", scopes=("publish:gone/x",))
    tokens = TokenSettings(issuer="i", scopes={"theirs": ("consume:gone/x",)})
    config = Config(brokers=BROKERS, access=AccessSettings(tokens=tokens, certificates=(certificate,)))
    assert [(each.where, each.scope) for each in configured.doubts(config)] == [
        ("access.certificates CN:c", "publish:gone/x"),
        ("access.tokens.scopes.theirs", "consume:gone/x"),
    ]


def test_sound_scopes_are_not_doubted() -> None:
    config = with_key("admin", "history", "publish:*/*", "route:shop/amq.default/q", "subscribe:*/*", "endpoint:new")
    assert configured.doubts(config) == []
