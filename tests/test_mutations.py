"""The table of mutations of the simulation fits the code of today. No world is run for that."""

from __future__ import annotations

import json
import re

import pytest

from tests.simulation.defects import DEFECTS
from tests.simulation.measuring import RESULTS, ROOT, entries
from tests.simulation.mutations import ALL, DEFECT_KINDS, FIXES, MUTATIONS
from tests.simulation.undoing import mutated
from tests.simulation.worlds import KINDS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_replaces_one_text_of_its_file_and_the_rest_compiles(name: str) -> None:
    mutation = MUTATIONS[name]
    source = mutated(mutation)
    assert source != (ROOT / mutation.path).read_text()
    compile(source, mutation.path, "exec")


def test_names_are_unique() -> None:
    assert len(ALL) == len(MUTATIONS)
    assert not MUTATIONS.keys() & DEFECTS.keys()
    assert FIXES.keys() | DEFECT_KINDS.keys() <= DEFECTS.keys()


@pytest.mark.parametrize("name", entries())
def test_commits_and_kinds_are_such(name: str) -> None:
    entry = entries()[name]
    assert re.fullmatch("[0-9a-f]{8}|", entry["commit"])
    assert set(entry["kind"].split(",")) <= KINDS.keys()


def test_the_results_are_of_these_mutations() -> None:
    results = json.loads(RESULTS.read_text())
    assert results.keys() <= entries().keys()
    for name, result in results.items():
        entry = entries()[name]
        assert all(result[key] == entry[key] for key in ("commit", "kind", "first")), name
        assert (result["seed"] is None) == (result["problem"] == ""), name
