"""The documentation as a site: it is built without a warning, and found in with a browser that has no network."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.console.conftest import PATIENCE, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "deploy" / "site" / "build.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    specification = importlib.util.spec_from_file_location("build_site", BUILD)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, str(BUILD), str(target)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    assert done.stdout.strip() == str(target / "index.html")
    return target


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "no Chromium was found: run tests/servers/install.sh"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-gpu"]
        )
        yield browser.new_page()
        browser.close()


def test_every_page_is_there(site: Path) -> None:
    names = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path.relative_to(site) for path in site.rglob("*.html")} >= names


def test_a_search_finds_a_page_without_a_network(site: Path, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    expect(page).to_have_title("AMQP gateway")
    box = page.get_by_role("textbox", name="Search")
    box.fill("idempotency")
    box.press("Enter")
    found = page.locator("#search-results li a", has_text="Retry a publish without duplicates").first
    expect(found).to_be_visible(timeout=PATIENCE)
    found.click()
    expect(page.locator("h1").first).to_contain_text("Retry a publish without duplicates", timeout=PATIENCE)
    assert {url.partition(":")[0] for url in asked} == {"file"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone.html">', "there is no gone.html"),
        ('<a class="x" href="#nowhere">', "has no place 'nowhere'"),
        ('<script src="https://cdn.example/x.js">', "loads https://cdn.example/x.js"),
        ('<img alt="" src="//cdn.example/x.png">', "loads //cdn.example/x.png"),
    ],
)
def test_a_dead_link_or_a_foreign_file_is_named(tmp_path: Path, builder: ModuleType, text: str, problem: str) -> None:
    (tmp_path / "page.html").write_text(f'<a href="https://example.org"><p id="here"><a href="#here">{text}')
    [found] = builder.dead_links(tmp_path)
    assert found.startswith("page.html: ")
    assert problem in found


def test_links_lead_to_pages_of_the_site(builder: ModuleType) -> None:
    text = "[a](../../README.md#try-it), [b](limits.md), [`c`](../../pyproject.toml)\n```\n[d](limits.md)\n```\n"
    assert builder.linked(text, "docs/reference/errors.md", "reference/errors.md") == (
        "[a](../start.md#try-it), [b](limits.md), `c`\n```\n[d](limits.md)\n```\n"
    )
