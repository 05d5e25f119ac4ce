"""The models hold, what is planted in them is found, and their words are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import errors
from gateway.bridges.bridge import BridgeSettings
from gateway.config import FrontSettings
from gateway.ledger import EventKind
from gateway.ledger.pending import keys
from gateway.ledger.pending.branches import BranchStatus
from gateway.ledger.writing.transitions import TRANSITIONS, TraceScope
from tests.models.alloy import ModelError, check, commands, models, one_sigs

MODELS = {path.stem: path for path in models()}
PLANTED = "Defect"


def words(name: str) -> str:
    """``KeyWithoutBody`` as the name of a check has it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("name", MODELS)
def test_it_holds_and_each_defect_is_found(name: str) -> None:
    wrong = [found for found in check(MODELS[name]).found if not found.is_right]
    assert not wrong, "\n".join([f"{found.command}", *found.trace][0] for found in wrong)


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_is_right_what_is_wrong_and_that_it_is_not_empty(name: str) -> None:
    asked = commands(MODELS[name])
    assert {each.is_expected for each in asked if each.name.startswith("right")} == {False}
    assert all(each.kind == "run" or each.name.startswith(("right", "wrong_")) for each in asked)
    assert all(each.is_expected for each in asked if not each.name.startswith("right"))
    assert any(each.kind == "run" for each in asked)
    text = MODELS[name].read_text(encoding="utf-8")
    for defect in one_sigs(MODELS[name], PLANTED):
        checks = [each.name for each in asked if each.name.startswith(f"wrong_{words(defect)}")]
        assert checks, f"no check plants {defect}"
        assert all(f"check {each} {{ Planted = {defect} " in text for each in checks)


def test_events_are_those_of_the_ledger() -> None:
    for name in ("publish", "bridge"):
        events = one_sigs(MODELS[name], "Event")
        assert events
        assert events <= {kind.value for kind in EventKind}, name


def test_states_of_keys_obligations_and_branches_are_those_of_the_ledger() -> None:
    assert one_sigs(MODELS["publish"], "KeyStatus") == {
        f"key_{status}" for status in (keys.RUNNING, keys.ANSWERED, keys.UNKNOWN)
    }
    assert one_sigs(MODELS["publish"], "Obligation") == {
        f"obligation_{status}" for status in (keys.PENDING, keys.PARKED)
    }
    assert one_sigs(MODELS["bridge"], "BranchStatus") == {status.value for status in BranchStatus}


def test_answers_are_error_codes() -> None:
    codes = {each.code for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "code")}
    answers = one_sigs(MODELS["publish"], "Answer") - {"ok"}
    assert answers
    assert answers <= codes


@pytest.mark.parametrize(
    ("name", "of", "settings", "field"),
    [("bridge", "Mode", BridgeSettings, "acknowledge"), ("front", "Store", FrontSettings, "store")],
)
def test_modes_are_settings(name: str, of: str, settings: type, field: str) -> None:
    modes = {each.replace("_", "-") for each in one_sigs(MODELS[name], of)}
    assert modes
    assert all(f'"{mode}"' in str(settings.__annotations__[field]).replace("'", '"') for mode in modes)


def test_the_table_of_events_is_that_which_judges_ledgers() -> None:
    events = one_sigs(MODELS["publish"], "Event")
    text = MODELS["publish"].read_text(encoding="utf-8")
    (table,) = re.findall(r"^fun next: Event -> Event \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    rows = {before: set(after.split(" + ")) for before, after in re.findall(r"(\w+) -> \(([^)]*)\)", table)}
    rules = TRANSITIONS[TraceScope.PUBLISH]
    expected = {before: {after for after in events if before in rules[after].after} for before in events}
    assert rows == {before: after for before, after in expected.items() if after}


def test_a_command_that_expects_nothing_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.als"
    model.write_text("sig A {}\nrun some_a { some A } for 3\nrun no_a { no A } for 3 expect 1\n", encoding="utf-8")
    with pytest.raises(ModelError, match="expect"):
        commands(model)


def test_a_model_that_alloy_cannot_read_is_an_error(tmp_path: Path) -> None:
    model = tmp_path / "model.als"
    model.write_text("sig A {\nrun some_a { some A } for 3 expect 1\n", encoding="utf-8")
    with pytest.raises(ModelError, match=r"model\.als: .*[Ss]yntax"):
        check(model)


def test_a_promise_that_does_not_hold_is_told_with_its_trace(tmp_path: Path) -> None:
    model = tmp_path / "model.als"
    model.write_text(
        "var sig A {}\nfact { no A and always (some A implies after some A) }\n"
        "check right_a { always no A } for 1 but 1..3 steps expect 0\n",
        encoding="utf-8",
    )
    (found,) = check(model).found
    assert not found.is_right
    assert any("+A" in line for line in found.trace)
