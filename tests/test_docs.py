"""The documentation says everything that there is, and nothing that is not."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import msgspec
import pytest

from gateway import commands, limits
from gateway.amqp import operations
from gateway.amqp.message import PROPERTY_NAMES
from gateway.api.http.auth import ConfiguredKeys
from gateway.api.http.problems import PROBLEMS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "runbooks")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def page(name: str) -> str:
    """The text of a page, by its path below the folder of its kind."""
    (path,) = (path for path in PAGES if path.relative_to(DOCS).as_posix().partition("/")[2] == name)
    return path.read_text(encoding="utf-8")


# ``licences.md`` names every locked package, and ``make install`` installs a part of them: tests/supply has that page.
WRITTEN = [path for path in PAGES if path.name != "licences.md"]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_generated_tables_are_as_they_would_be_written_now(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == generate.render(text), "run: make docs"


def test_every_table_stands_on_one_page() -> None:
    found = [match["name"] for path in PAGES for match in generate.BLOCK.finditer(path.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(generate.TABLES)


SETTINGS_PAGES = ("settings.md", *(f"{name}.md" for name in generate.SETTINGS))


def test_every_setting_is_documented() -> None:
    text = "".join(page(name) for name in SETTINGS_PAGES).replace("\n## ", "\n### ")
    for path, struct in generate.config_tables(generate.config.Config):
        section = text.split(f"### {generate.config_heading(path)}\n")[1].split("\n### ")[0]
        for field in struct.__struct_fields__:
            inner = generate.config_heading((*path, field)).strip("`[]")
            assert f"| `{field}` |" in section or inner in text, f"{path} {field}"
    for variable in generate.config.ENVIRONMENT:
        assert f"`{variable}`" in text


def test_every_word_of_a_setting_is_documented() -> None:
    rows = "".join(page(name) for name in SETTINGS_PAGES).replace("\n## ", "\n### ").splitlines()
    for path, struct in generate.config_tables(generate.config.Config):
        heading = rows.index(f"### {generate.config_heading(path)}")
        for field in msgspec.structs.fields(struct):
            words = generate.words_in(field.type)
            row = next((row for row in rows[heading:] if row.startswith(f"| `{field.name}` |")), "")
            assert all(f"`{word}`" in row for word in words if word), f"{path} {field.name}"


def test_the_examples_are_configurations(tmp_path: Path) -> None:
    examples = [
        text
        for path in EVERYWHERE
        for text in re.findall(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(examples) > 1
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        ConfiguredKeys(generate.config.load(path, {}).api_keys)


def test_every_error_is_documented() -> None:
    text = page("errors.md")
    for error in generate.error_tree():
        assert f"| `{error.code}` | `{error.__name__}` |" in text
    for code in PROBLEMS:
        assert f'<a id="{code}"></a>`{code}`' in text


def test_every_error_of_the_gateway_is_a_problem() -> None:
    for error in generate.error_tree():
        assert error.code in PROBLEMS


def test_every_verb_and_option_is_documented() -> None:
    shared = page("commands.md").split("## Exit status\n")[0]
    text = "".join(page(f"commands/{name}.md") for name in generate.VERBS)
    for path, command in every_command(commands.cli, click.Context(commands.cli, info_name="gateway")):
        section = text.split(f"## `{path}`\n")[1].split("\n## ")[0]
        for parameter in command.params:
            where = shared if getattr(parameter, "hidden", False) else section
            for name in (*parameter.opts, *parameter.secondary_opts):
                shown = name if name.startswith("-") else parameter.make_metavar(click.Context(command))
                assert shown in where, f"{path} {name}"
            if isinstance(parameter, click.Option) and isinstance(parameter.envvar, str):
                assert parameter.envvar in where


def every_command(group: click.Group, context: click.Context) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        found.append((inner.command_path, command))
        if isinstance(command, click.Group):
            found += every_command(command, inner)
    return found


def test_every_limit_is_documented() -> None:
    text = page("limits.md")
    for name in limits.LIMIT_NAMES:
        assert f"| `{name}` | {getattr(limits.DEFAULT_LIMITS, name):_} |" in text


def test_every_operation_is_in_the_matrix() -> None:
    text = page("protocols.md").split("## Operations\n")[1].split("\n## ")[0]
    wanted = {
        cls.__name__
        for cls in vars(operations).values()
        if isinstance(cls, type) and issubclass(cls, operations.Operation)
    }
    answers = {"Operation", "Request", "Outcome", "Opened", "Closed", "ChannelClosed", "Done", "Failed", "Declared"}
    answers |= {"Removed", "ExchangeFound", "BindingFound", "Consuming"}
    assert set(re.findall(r"`([A-Z]\w+)`", text)) == wanted - answers


def test_every_property_is_in_the_table_of_what_is_carried() -> None:
    text = page("protocols.md").split("## Messages between versions\n")[1]
    assert set(re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)))) == set(
        PROPERTY_NAMES
    )


def test_every_metric_is_documented() -> None:
    text = page("metrics.md")
    names = [metric.name for metric, _ in generate.metric_families()]
    assert names
    for name in names:
        assert f"| `{name}` |" in text


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.match(r"[A-Za-z0-9._-]+", text)[0] for text in wanted}  # type: ignore[index]
    reasons = set(re.findall(r"^\| `([a-z0-9-]+)` \| \S", page("decisions.md"), re.MULTILINE))
    assert reasons == names


EVERYWHERE = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "gateway").glob("*.md"), *(ROOT / "deploy").rglob("*.md"),
                 *DOCS.rglob("*.md")]
)  # fmt: skip


@cache
def places(path: Path) -> frozenset[str]:
    """What links to a page may point at: its headings as GitHub and the site name them, and its ids."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r'<a id="([^"]+)">', text)
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|<[^>]*>", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return frozenset(found)


@pytest.mark.parametrize("path", EVERYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, _, place in (link.partition("#") for link in re.findall(r"\]\(([^):\s]+)\)", text)):
        there = path.parent / target if target else path
        assert there.exists(), target
        assert not place or there.suffix != ".md" or place in places(there), f"{target}#{place}"


def test_every_page_stands_in_the_index() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    found = re.findall(r"\]\(([a-z/-]+/[A-Za-z0-9-]+\.md)\)", text)
    assert sorted(found) == sorted(str(path.relative_to(DOCS)) for path in PAGES if path.name != "index.md")
    assert "](docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_page_is_found_from_the_readme() -> None:
    """Runbooks and the page of examples are not in the index; pages that are link to them."""
    found, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop().resolve()
        if path not in found and path.suffix == ".md":
            found.add(path)
            links = re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
            left += [path.parent / link for link in links]
    assert set(DOCS.rglob("*.md")) <= found


def test_a_place_of_a_page_is_a_heading_or_an_id(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# A `b` [c](d.md): e_f\n\n## G\n\n<a id="h"></a>\n\n## G\n\n```\n# no heading\n```\n')
    assert places(page) == {"a-b-c-e_f", "g", "g-1", "h"}


def test_the_changelog_knows_this_version() -> None:
    from gateway import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


LINES_MAX = 265
"""Longest page that is read from beginning to end, or searched by eye."""


def test_pages_are_short() -> None:
    assert not {path.name for path in PAGES if len(path.read_text(encoding="utf-8").splitlines()) > LINES_MAX}


GUIDES = {path.name for path in PAGES if path.parent.name == "how-to"}


def test_there_is_a_guide_for_what_people_search_for() -> None:
    assert len(GUIDES) >= 20
    assert {"backup.md", "rotate.md", "upgrade.md"} <= GUIDES
