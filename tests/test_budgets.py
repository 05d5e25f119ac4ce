"""Budgets: what one client may hold of what all clients need."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.budgets import RESOURCES, BudgetBounds, BudgetResource, Budgets, Holdings, ShareHolder
from gateway.config import Config, budget_bounds, load
from gateway.config.bounds import check_budgets
from gateway.errors import BudgetExceeded, ConfigurationError, Overloaded
from gateway.observing.telemetry import Metrics

ALICE, BOB, ROOT = ShareHolder("alice"), ShareHolder("bob"), ShareHolder("root", is_admin=True)


def ten(share: float = 0.5, reserve: float = 0.2, **clients: float) -> Holdings:
    """Return holdings of ten requests."""
    return Budgets(BudgetBounds(share, reserve, {"requests": 10}, clients=clients))["requests"]


def test_a_client_at_its_share_is_refused_and_others_are_not() -> None:
    requests = ten()
    requests.take(ALICE, 5)
    with pytest.raises(BudgetExceeded, match=r"budget requests: 'alice' holds 5 .* its share is 5 of 10"):
        requests.take(ALICE)
    requests.take(BOB, 3)
    assert (requests.held_by(ALICE), requests.held_by(BOB), requests.standing().held) == (5, 3, 8)
    requests.give(ALICE)
    requests.take(ALICE)


def test_what_is_reserved_is_for_admin() -> None:
    requests = ten()
    requests.take(ALICE, 5)
    requests.take(BOB, 3)
    with pytest.raises(
        Overloaded, match=r"8 of 10 HTTP requests .* \(http.concurrency\), and 2 are reserved for admin"
    ):
        requests.take(BOB)
    requests.take(ROOT, 2)
    with pytest.raises(Overloaded):
        requests.take(ROOT)


def test_what_was_refused_holds_nothing() -> None:
    requests = ten()
    with pytest.raises(BudgetExceeded):
        requests.take(ALICE, 6)
    assert requests.standing().held == 0
    assert requests.held_by(ALICE) == 0


def test_a_block_gives_back_whatever_ends_it() -> None:
    requests = ten()
    with pytest.raises(ValueError, match="no"), requests.hold(ALICE, 5):  # noqa: PT012  # the block is what is tested
        assert requests.held_by(ALICE) == 5
        raise ValueError("no")
    assert requests.largest(10) == []


def test_shares_of_a_client_and_of_one_that_is_alone() -> None:
    requests = ten(share=0.1, alice=0.8)
    assert requests.share_of(ALICE) == 8
    assert requests.share_of(BOB) == 1
    assert requests.share_of(ShareHolder("anonymous", is_admin=True, is_alone=True)) == 10
    assert requests.room_of(BOB) == 1
    requests.take(ALICE, 8)
    assert requests.room_of(BOB) == 0
    assert requests.largest(1) == [(ALICE, 8)]


def test_a_client_called_like_an_address_has_a_share_of_its_own() -> None:
    requests = ten(reserve=0.0, **{"192.0.2.1": 0.1})
    key, address = ShareHolder("192.0.2.1"), ShareHolder("192.0.2.1", kind="address")
    requests.take(address, 5)
    requests.take(key)
    assert (requests.held_by(key), requests.held_by(address)) == (1, 5)
    assert (requests.share_of(key), requests.share_of(address)) == (1, 5), "settings name clients, not addresses"
    with pytest.raises(BudgetExceeded, match=r"budget requests: the address '192\.0\.2\.1' holds 5 "):
        requests.take(address)
    assert requests.largest(2) == [(address, 5), (key, 1)]


def test_a_lower_bound_takes_nothing_away() -> None:
    budgets = Budgets(BudgetBounds(1.0, 0.0, {"requests": 10}))
    budgets["requests"].take(ALICE, 10)
    budgets.configure(BudgetBounds(1.0, 0.0, {"requests": 5}))
    assert budgets["requests"].held_by(ALICE) == 10
    with pytest.raises(BudgetExceeded):
        budgets["requests"].take(ALICE)
    budgets["requests"].give(ALICE, 6)
    budgets["requests"].take(ALICE)


def test_what_one_request_may_need_fits_into_any_share() -> None:
    holdings = Budgets(BudgetBounds(0.1, 0.5, {"bytes": 1_000}, clients={"alice": 0.01}, ones={"bytes": 700}))["bytes"]
    assert (holdings.share, holdings.reserve, holdings.share_of(ALICE)) == (700, 300, 700)
    holdings.take(ALICE, 700)
    with pytest.raises(Overloaded):
        holdings.take(BOB, 1)


def test_a_part_of_another_resource_is_lower_than_that() -> None:
    config = msgspec.convert({"http": {"concurrency": 100}}, Config)
    assert budget_bounds(config).totals["streams"] == 75
    config = msgspec.convert({"http": {"concurrency": 100}, "budgets": {"totals": {"streams": 99}}}, Config)
    assert budget_bounds(config).totals["streams"] == 99
    config = msgspec.convert({"http": {"concurrency": 100}, "budgets": {"totals": {"streams": 100}}}, Config)
    assert check_budgets(config) == "totals: 'streams' is 100; set it below http.concurrency, which is 100"


def test_the_metrics_show_it() -> None:
    metrics, budgets = Metrics("test"), Budgets(BudgetBounds(0.5, 0.0, {"requests": 10}))
    metrics.show_budgets(budgets)
    budgets["requests"].take(ALICE, 5)
    with pytest.raises(BudgetExceeded):
        budgets["requests"].take(ALICE)
    page = metrics.render().decode()
    assert 'amqpgw_budget_used{resource="requests"} 5.0' in page
    assert 'amqpgw_budget_total{resource="requests"} 10.0' in page
    assert 'amqpgw_budget_largest{resource="requests"} 5.0' in page
    assert 'amqpgw_budget_refusals_total{reached="share",resource="requests"} 1.0' in page


@pytest.mark.parametrize("row", RESOURCES.values(), ids=RESOURCES)
def test_the_default_total_is_that_of_the_setting(row: BudgetResource) -> None:
    bounds = budget_bounds(load(None, {}))
    assert bounds.totals.get(row.name, row.total) == row.total
    assert row.setting == "budgets.totals" or row.name in bounds.totals
    assert row.scope in ("process", "ledger")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "[budgets.shares]\nteapots = 0.5",
            "budgets.shares: there is no resource 'teapots'; the resources are requests",
        ),
        ("[budgets.totals]\nrequests = 5", "budgets.totals: the total of 'requests' is http.concurrency; set that"),
        ("[budgets]\nshare = 0.0", "budgets.share"),
        ("[budgets]\nreserve = 1.0", "budgets.reserve"),
        ("[budgets.clients]\nalice = 2.0", "budgets.clients"),
    ],
)
def test_wrong_settings(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load(file, {})
    assert wrong in str(refused.value)


def test_the_settings_are_the_bounds(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("http.concurrency = 50\n[budgets]\nshare = 0.5\n[budgets.clients]\nalice = 1.0")
    requests = Budgets(budget_bounds(load(file, {})))["requests"]
    assert (requests.total, requests.share_of(BOB), requests.share_of(ALICE), requests.reserve) == (50, 25, 50, 5)


def test_nothing_is_taken_and_given_back() -> None:
    requests = ten()
    with requests.hold(ALICE, 0), requests.hold(ALICE, 0):
        assert requests.largest(10) == []


def test_what_the_ledger_keeps_counts_with_what_is_held() -> None:
    scheduled = Budgets(BudgetBounds(0.5, 0.2, {"scheduled": 10}))["scheduled"]
    scheduled.keep("alice", 3)
    with scheduled.hold(ALICE, 2), pytest.raises(BudgetExceeded, match="'alice' holds 5"):
        scheduled.take(ALICE)
    scheduled.recount({"alice": 1, "bob": 5, "carol": 2})
    assert (scheduled.held_by(ALICE), scheduled.standing()) == (1, (8, 10, 5, 5))
    with pytest.raises(Overloaded):
        scheduled.take(ALICE)
    scheduled.keep("bob", -7)
    assert scheduled.standing().held == 3
    assert scheduled.largest(10) == [(ShareHolder("carol"), 2), (ALICE, 1)]


@pytest.mark.parametrize(
    ("kept", "found", "added", "removed", "after"),
    [
        (3, 3, 2, 0, 3),  # what was added was found, and had been reported before the count ended
        (3, 1, 2, 0, 3),  # it was not found
        (3, 2, 2, 0, 3),
        (9, 2, 2, 0, 4),  # another process has removed some
        (0, 4, 0, 0, 4),  # another process has added some
        (1, 4, 0, 3, 1),  # what was removed was found
        (1, 1, 0, 3, 1),  # it was not found
        (5, 0, 0, 0, 0),
    ],
)
def test_what_changes_while_it_is_counted_counts_once(
    kept: int, found: int, added: int, removed: int, after: int
) -> None:
    scheduled = Budgets(BudgetBounds(0.5, 0.2, {"scheduled": 10}))["scheduled"]
    scheduled.keep("alice", kept)
    scheduled.recount({"alice": found}, {"alice": added}, {"alice": removed})
    assert (scheduled.held_by(ALICE), scheduled.standing().held) == (after, after)


def test_nothing_is_taken_at_any_time() -> None:
    budgets = Budgets(BudgetBounds(1.0, 0.0, {"requests": 10}))
    budgets["requests"].take(ALICE, 10)
    budgets.configure(BudgetBounds(0.5, 0.0, {"requests": 10}))
    budgets["requests"].take(ALICE, 0)
    assert budgets["requests"].held_by(ALICE) == 10
