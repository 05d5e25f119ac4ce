"""Which pairings of a test ``make test`` runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import pairings

TESTS = Path(__file__).parent


@dataclass(eq=False)
class Item:
    """What of a test counts."""

    path: str
    params: dict[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()

    @property
    def nodeid(self) -> str:
        return f"tests/{self.path}::test" + (f"[{'-'.join(map(str, self.params.values()))}]" if self.params else "")

    @property
    def callspec(self) -> Any:
        return SimpleNamespace(params=self.params)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


def kept(*items: Any) -> list[Any]:
    found, others = pairings.once(items)
    assert sorted(map(id, (*found, *others))) == sorted(map(id, items))
    return [item.params for item in found]


def test_a_test_runs_once_on_each_broker_with_each_of_its_other_arguments() -> None:
    ends = [(broker, version) for broker in ("rabbitmq", "brokerj") for version in ("0-8", "0-9", "0-9-1")]
    items = [Item("conformance/test_x.py", {"far_end": end, "size": size}) for end in ends for size in ({"n": 1}, 2)]
    found = kept(*items)
    assert len(found) == 4
    assert {(params["far_end"][0], str(params["size"])) for params in found} == {
        (broker, size) for broker in ("rabbitmq", "brokerj") for size in ("{'n': 1}", "2")
    }
    assert kept(*items) == found, "the same ones each time"


def test_all_tests_together_cover_every_pairing() -> None:
    urls = ("sqlite", "postgresql")
    found = kept(*(Item(f"ledger/test_{n}.py", {"url": url}) for n in range(50) for url in urls))
    assert len(found) == 50
    assert {params["url"] for params in found} == set(urls)


def test_two_protocols_are_two_implementations() -> None:
    versions = ("0-8", "0-9", "0-9-1", "0-10")
    found = kept(*(Item("hostile/test_x.py", {"version": SimpleNamespace(value=value)}) for value in versions))
    assert len(found) == 2
    assert found[1]["version"].value == "0-10"


def test_what_is_long_or_newest_runs_elsewhere() -> None:
    server = [Item("test_app_delivery_limits.py", {"server": name}) for name in ("rabbitmq43", "rabbitmq40")]
    assert kept(*server, Item("wire/test_x.py", marks=("long",)), Item("wire/test_x.py", {"url": "x"})) == [
        {"server": "rabbitmq40"},
        {"url": "x"},
    ]


@pytest.mark.parametrize("place", [*pairings.PAIRINGS, *pairings.BY_PROTOCOL])
def test_every_place_is_one(place: str) -> None:
    assert (TESTS / place).exists()
