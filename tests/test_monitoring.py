"""Alerts, dashboards and runbooks speak of what there is: of metrics and labels that are exposed, of commands and
settings that exist, and of each other. What the rules do is tested with ``promtool``, in ``tests/deploy``."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from gateway import commands
from gateway.observing.telemetry import PREFIX, Metrics
from tests.test_docs import every_command, generate

ROOT = Path(__file__).parent.parent
FILES = ROOT / "deploy" / "helm" / "amqp-gateway" / "files"
RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks"
ALERTS = (FILES / "alerts.yaml").read_text(encoding="utf-8")
NAMES = re.findall(r"^ +- alert: (\w+)$", ALERTS, re.MULTILINE)
BOOKS = sorted(RUNBOOKS.glob("*.md"))
SCRAPED = {"job", "instance", "le"}
"""Labels that a scrape or a histogram adds."""
HEADS = ["## What it means", "## What to look at", "## What to do"]
EVENTS = {
    name
    for path in (ROOT / "gateway").rglob("*.py")
    for name in re.findall(r"\b(?:log|tell)\(\s*\"([a-z_.]+)\"", path.read_text(encoding="utf-8"))
}
"""What is logged."""
METRIC = re.compile(r"\b(?:amqpgw|process)_\w+(?:\{([^}]*)\})?")


def exposed() -> dict[str, set[str]]:
    """Metric as it is asked for -> its labels."""
    found: dict[str, set[str]] = {}
    for metric, labels in generate.metric_families():
        suffixes = ("_bucket", "_count", "_sum") if metric.type == "histogram" else ("",)
        for suffix in suffixes:
            found[metric.name + suffix] = set(labels)
    page = Metrics("").render().decode()
    found |= {name: set() for name in re.findall(r"^# TYPE (process_\w+)", page, re.MULTILINE)}
    return found


EXPOSED = exposed()


def dashboards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("helm_dashboards", ROOT / "deploy" / "helm" / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def queries() -> dict[str, str]:
    """Where a query stands -> the query."""
    found = {}
    for block in re.split(r"^ +- (?=alert|record)", ALERTS, flags=re.MULTILINE)[1:]:
        name = block.split(":", 1)[1].split("\n", 1)[0].strip()
        match = re.search(r"expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels|annotations):|\n +- name:|\Z)", block, re.DOTALL)
        assert match is not None, name
        found[f"rule {name}"] = " ".join(match[1].split())
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
    for path in BOOKS:
        for number, text in enumerate(
            re.findall(r"`([^`]*\b(?:amqpgw|process)_[^`]*)`", path.read_text(encoding="utf-8"))
        ):
            found[f"{path.stem} {number}"] = " ".join(text.split())
    return found


QUERIES = queries()


@pytest.mark.parametrize("where", QUERIES)
def test_a_query_asks_for_what_is_exposed(where: str) -> None:
    query = QUERIES[where]
    asked: set[str] = set()
    known = set(SCRAPED)
    for match in METRIC.finditer(query):
        name = match[0].partition("{")[0]
        if name == PREFIX or name == "amqpgw_build_info" or (match.end() < len(query) and query[match.end()] == "."):
            continue
        assert name in EXPOSED, f"{where}: there is no {name}"
        asked.add(name)
        known |= EXPOSED[name]
        for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", match[1] or ""):
            assert label in EXPOSED[name], f"{where}: {name} has no label {label}"
    recorded = set(re.findall(r"amqpgw:\w+:\w+", query))
    assert recorded <= set(re.findall(r"record: (\S+)", ALERTS)), where
    for labels in re.findall(r"\bby \(([^)]*)\)", query):
        for label in labels.replace(" ", "").split(","):
            assert label in known | {"version", "__name__"}, f"{where}: no label {label}"


def test_the_queries_were_found() -> None:
    assert len([where for where in QUERIES if where.startswith("rule ")]) == ALERTS.count("expr:")
    assert len(QUERIES) > 90


def test_every_metric_is_looked_at_somewhere() -> None:
    """A number that no dashboard shows and no alert asks for is no use."""
    text = "\n".join(QUERIES[where] for where in QUERIES)
    for metric, _ in generate.metric_families():
        assert metric.name in text, f"nobody looks at {metric.name}"


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert sorted(NAMES) == [path.stem for path in BOOKS]
    links = re.findall(r"runbook_url: (\S+)", ALERTS)
    assert links == [f"https://example.com/amqp-gateway/runbooks/{name}.md" for name in NAMES]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_page_says_what_to_do(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}\n")
    assert re.findall(r"^## .*$", text, re.MULTILINE) == HEADS
    for head in HEADS:
        assert len(text.split(head)[1].split("\n## ")[0].strip()) > 40
    assert all(len(line) <= 120 for line in text.splitlines())
    for target in re.findall(r"\]\(([^)#:\s]+)\)", text):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_page_names_commands_and_settings_that_there_are(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    verbs = {name for name, _ in every_command(commands.cli, click.Context(commands.cli, info_name="gateway"))}
    for command in re.findall(r"`(gateway(?: [a-z]+)+)", text):
        words = command.split()
        assert any(" ".join(words[:length]) in verbs for length in (2, 3)), command
    settings = {
        ".".join((*table, field))
        for table, struct in generate.config_tables(generate.config.Config)
        for field in struct.__struct_fields__
    }
    tables = {table[0] for table, _ in generate.config_tables(generate.config.Config) if table}
    for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", text):
        if name.split(".")[0] in tables:
            assert name in settings | EVENTS, name


def test_the_page_on_operations_lists_them() -> None:
    text = (ROOT / "docs" / "reference" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./how-to/runbooks/(\w+)\.md\) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    rules = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)\n +annotations:\n +summary: (.+?)\n", ALERTS, re.DOTALL)
    said = [(name, re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", summary)) for name, _, summary in rules]
    assert [row[0] for row in rows] == [row[1] for row in rows] == NAMES
    assert [(row[0], row[3]) for row in rows] == said
    assert [row[2] for row in rows] == [severity for _, severity, _ in rules]


def test_severities_are_two() -> None:
    found = re.findall(r"severity: (\w+)", ALERTS)
    assert len(found) == len(NAMES)
    assert set(found) == {"critical", "warning"}


def test_the_dashboards_are_as_they_would_be_written_now() -> None:
    module = dashboards()
    written = {path.name: path.read_text(encoding="utf-8") for path in (FILES / "dashboards").glob("*.json")}
    assert written == module.texts(), "run: make docs"


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    module = dashboards()
    seen: set[str] = set()
    for name, (title, panels) in module.DASHBOARDS.items():
        shown: dict[str, Any] = module.dashboard(name, title, panels)
        places = {(each["gridPos"]["x"], each["gridPos"]["y"]) for each in shown["panels"]}
        assert len(places) == len({each["id"] for each in shown["panels"]}) == len(panels)
        seen.add(shown["uid"])
    assert len(seen) == 4
