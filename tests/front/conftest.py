"""Which tests of other suites do not run through a front, and why."""

from __future__ import annotations

import pytest

ENDS = "test_the_queue_of_a_consumer_goes_and_comes_back"
EXCLUDED = {
    (ENDS, "rabbitmq-0-8"): "0-8 does not tell consumers of an end",
    (ENDS, "brokerj"): "Broker-J does not tell consumers of an end",
    ("test_a_thousand_confirmed_messages_with_everything", "brokerj"): "transient messages overtake others in Broker-J",
    ("test_declaring_again", "brokerj-0-10"): "Broker-J takes any declaration in 0-10 for the queue that is there",
    ("test_purge_and_depth", "9-1-brokerj-0-10"): "0-10 does not tell how many messages were purged",
    ("test_purge_and_depth", "0-9-brokerj-0-10"): "0-10 does not tell how many messages were purged",
    ("test_purge_and_depth", "0-8-brokerj-0-10"): "0-10 does not tell how many messages were purged",
    ("test_reject_to_a_dead_letter_place", "brokerj-0-9"): "Broker-J takes alternate exchanges in 0-10 only",
}
"""Test and a part of its pair of versions -> what the upstream cannot do."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is excluded."""
    left_out = [
        item
        for item in items
        if any(item.name.startswith(f"{name}[") and pair in item.name for name, pair in EXCLUDED)
        and "test_conformance" in item.nodeid
    ]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
