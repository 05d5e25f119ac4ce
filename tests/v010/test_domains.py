"""Domains: those of the fields, and the numbers that have names elsewhere."""

from __future__ import annotations

from gateway.v010 import codes, commands, controls
from gateway.v010.domains import CONSTANTS, DOMAINS
from gateway.v010.frames import FRAME_MIN
from tests.v010.values import DECLARED


def test_every_domain_of_a_field_is_one() -> None:
    used = {(domain, kind.name) for declared in DECLARED for name, _, kind, _ in declared.layout
            if (domain := declared.domains.get(name))}  # fmt: skip
    assert {(domain, DOMAINS[domain].type) for domain, _ in used} == used
    unused = {"segment-type", "track", "str16-array"}
    assert {domain for domain, _ in used} == DOMAINS.keys() - unused


def test_numbers_that_have_names() -> None:
    named = {
        "connection.close-code": (controls, "NORMAL CONNECTION_FORCED INVALID_PATH FRAMING_ERROR"),
        "message.accept-mode": (commands, "EXPLICIT NONE"),
        "message.acquire-mode": (commands, "PRE_ACQUIRED NOT_ACQUIRED"),
        "message.reject-code": (commands, "UNSPECIFIED UNROUTABLE IMMEDIATE"),
        "message.flow-mode": (commands, "CREDIT WINDOW"),
        "message.credit-unit": (commands, "MESSAGES OCTETS"),
    }
    for domain, (module, names) in named.items():
        assert [getattr(module, name) for name in names.split()] == list(DOMAINS[domain].choices.values())
    errors = {name: code for code, (name, _) in codes.ERROR_CODES.items()}
    assert errors == DOMAINS["execution.error-code"].choices
    assert {name: code for code, name in controls.DETACH_CODES.items()} == DOMAINS["session.detach-code"].choices
    assert CONSTANTS["MIN-MAX-FRAME-SIZE"] == FRAME_MIN
