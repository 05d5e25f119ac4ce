"""Generated clients compile, publish once, pull, acknowledge, and see an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.commands.client import ApiClient
from gateway.commands.demo import gateway_of_our_own
from tests.generated import clients

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "generate-a-client.md"


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with gateway_of_our_own() as url:
        yield url


@pytest.mark.parametrize("language", clients.LANGUAGES)
def test_it_compiles_and_does_the_main_job(language: str, gateway: str, tmp_path: Path) -> None:
    clients.build(language, tmp_path)
    printed = clients.main_job(language, tmp_path, gateway)
    assert printed[:2] == ["confirmed", "confirmed"]
    assert printed[2:3] == ['{"order":7}'], "the second publish repeated the first, and put nothing into the queue"
    assert "SUCCESS" in printed[3]
    assert printed[4:] == ["422"]
    queue = ApiClient(gateway, None).ask("GET", f"/v1/brokers/local-0-9-1/queues/orders-{language}")
    assert queue["messages"] == 0


@pytest.mark.parametrize("language", clients.LANGUAGES)
def test_the_page_has_the_command_and_the_program(language: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert clients.LANGUAGES[language].options in " ".join(page.replace("\\\n", "").split())
    assert f"examples/generated/{clients.LANGUAGES[language].program}" in page
