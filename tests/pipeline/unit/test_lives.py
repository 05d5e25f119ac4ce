"""Every kind of event has its place in what is counted, and the flows agree with it."""

from __future__ import annotations

from itertools import chain

import pytest

from gateway.ledger.writing.states import RULES, EventKind, MessagePhase
from gateway.pipeline.jobs.lives import FINAL, FLOWS, LIVES, Role

ENDS = {Role.ENDS, Role.LEAVES, Role.DOUBTS}


def test_every_kind_has_its_roles_and_is_written_in_some_flow() -> None:
    assert set(LIVES) == set(EventKind)
    assert set(chain.from_iterable(flow.roles for flow in FLOWS.values())) == set(EventKind)


@pytest.mark.parametrize("name", FLOWS)
def test_what_ends_in_a_flow_ends_something(name: str) -> None:
    for kind, verb in FLOWS[name].roles.items():
        life = LIVES[kind]
        roles = {life.publish, life.stay}
        if verb == "ends":
            assert roles & ENDS, kind
        elif verb == "notes":
            assert roles == {Role.NOTES}, kind
        elif verb == "holds":
            assert not roles & ENDS, kind
            assert roles != {Role.NOTES}, kind
        else:
            assert verb == "begins", verb


def test_the_phases_of_the_ledger_and_the_roles_agree() -> None:
    for kind, life in LIVES.items():
        if RULES[kind].phase is MessagePhase.CONSUME:
            assert life.publish is Role.NOTES, kind
        elif kind is not EventKind.CONFIRMED:  # the one that ends the one and begins the other
            assert life.stay is Role.NOTES, kind


def test_what_latencies_are_taken_of() -> None:
    assert {"confirmed", "unknown", "acknowledged", "forwarded", "dead_lettered", "spooled"} <= set(FINAL)
    assert not {"accepted", "delivered", "stored", "released", "replayed", "reduced"} & set(FINAL)
