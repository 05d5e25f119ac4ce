"""What the verbs share that put resources: settings in a file, resources by pages."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.commands import NOT_FOUND, Failure
from gateway.commands.client import ApiClient

PAGE = 100
LISTED: Final = {"limit": "1000"}
"""How much of a list of a broker's exchanges, queues or bindings comes at once."""
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
"""For verbs that call :func:`confirm`."""


def confirm(client: ApiClient, path: str, question: str, yes: bool) -> None:
    """Ask before something ends, once it is known to be there. Raises Failure where it is not, Abort for a no."""
    if not yes:
        client.ask("GET", path)
        click.confirm(question, abort=True)


def read_settings(octets: bytes, name: str, table: str = "bridges") -> dict[str, Any]:
    """The settings in a file, JSON or TOML: by themselves, or as ``[TABLE.NAME]``."""
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"not UTF-8: {error}", param_hint="FILE") from None
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"neither JSON nor TOML: {error}", param_hint="FILE") from None
    if isinstance(found.get(table), dict):
        if name not in found[table]:
            raise click.BadParameter(f"there is no [{table}.{name}] in it", param_hint="FILE")
        found = found[table][name]
    settings: dict[str, Any] = found
    return settings


def arguments_text(arguments: Mapping[str, Any] | None) -> str:
    """Arguments of a declaration in a cell."""
    return json.dumps(arguments, ensure_ascii=False) if arguments else "-"


def declared(row: Mapping[str, Any], *names: str) -> list[Any]:
    """How a queue or exchange was declared: these settings, and its arguments, as cells."""
    settings = row["settings"] if isinstance(row["settings"], dict) else {}
    return [*map(settings.get, names), arguments_text(settings.get("arguments"))]


def put(client: ApiClient, path: str, settings: dict[str, Any], replace: bool) -> Any:
    """Create a resource at that path; ``replace``: or replace the one that is there. What it is now."""
    headers = {"if-match": "*"} if replace and exists(client, path) else {}
    return client.ask("PUT", path, body=settings, headers=headers)


def exists(client: ApiClient, path: str) -> bool:
    """Whether there is a resource at that path."""
    try:
        client.ask("GET", path)
    except Failure as failure:
        if failure.exit_code == NOT_FOUND:
            return False
        raise
    return True


def pages(client: ApiClient, path: str, key: str) -> list[dict[str, Any]]:
    """All resources of a list that is paged by name; ``key`` is where the answer has them."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = client.ask("GET", path, query={"limit": str(PAGE)} | ({"cursor": cursor} if cursor else {}))[key]
        found += page
        if len(page) < PAGE:
            return found
        cursor = page[-1]["name"]
