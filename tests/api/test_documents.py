"""The OpenAPI document and the page that shows it; neither loads anything from elsewhere."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.api.about import examples
from gateway.api.about.documents import ASSETS
from gateway.api.about.links import names_of
from gateway.api.app import ROUTES, openapi_octets
from gateway.api.http.problems import PROBLEMS

DOCUMENT: dict[str, Any] = json.loads(openapi_octets())
OPERATIONS = {each["operationId"]: each for item in DOCUMENT["paths"].values() for each in item.values()}
NULL = {"type": "null"}


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Operation, media type, and what the document says of that body."""
    for name, operation in OPERATIONS.items():
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            yield name, media, content


def values_of(content: dict[str, Any]) -> list[Any]:
    """The examples of a body."""
    if "example" in content:
        return [content["example"]]
    return [each["value"] for each in content.get("examples", {}).values()]


def schemas(found: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of the document, those within others included, and where it is."""
    if isinstance(found, list):
        for number, each in enumerate(found):
            yield from schemas(each, f"{where}/{number}")
    elif isinstance(found, dict):
        yield where, found
        for name, each in found.items():
            yield from schemas(each, f"{where}/{name}")


BODIES = list(bodies())
SCHEMAS = [
    *schemas(DOCUMENT["components"]["schemas"]),
    *((f"{name}/{each['name']}", each["schema"]) for name, operation in OPERATIONS.items()
      for each in operation.get("parameters", ())),
    *((f"{name}/{media}", content["schema"]) for name, media, content in BODIES),
]  # fmt: skip


async def test_the_document_is_valid(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    document = response.json()
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


async def test_every_route_is_in_it(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {(path, method.upper()) for path, item in paths.items() for method in item} == {
        (route.path, route.method) for route in ROUTES
    }
    operations = [operation for item in paths.values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    for operation in operations:
        assert operation["summary"]
        assert operation["tags"]


async def test_fields_have_their_descriptions(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["Published"]["properties"]["resent"]["description"].startswith("The message was sent again")
    assert "minutes" not in schemas["Queue"]["properties"]["messages"]
    assert schemas["SubscriptionSettings"]["properties"]["queue"]["description"].startswith("A queue of that broker.")


def test_every_member_has_a_description() -> None:
    without = [
        f"{name}.{member}"
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for member, found in schema.get("properties", {}).items()
        if not found.get("description")
    ]
    assert not without, "write a string under the field"


def test_every_parameter_has_a_description() -> None:
    parameters = [(name, each) for name, found in OPERATIONS.items() for each in found.get("parameters", ())]
    assert not [(name, each["name"]) for name, each in parameters if not each.get("description")]
    encoded = [name for name, each in parameters if each["in"] == "path" and "percent" in each["description"]]
    assert not encoded, "clients that are generated encode names themselves"


def test_every_body_has_an_example() -> None:
    assert BODIES
    assert not [(name, media) for name, media, content in BODIES if not values_of(content)], "see gateway/api/examples"


@pytest.mark.parametrize("each", BODIES, ids=lambda each: f"{each[0]}-{each[1]}")
def test_an_example_fits_its_schema(each: Any) -> None:
    _, _, content = each
    validator = OAS31Validator({**content["schema"], "components": DOCUMENT["components"]})
    for value in values_of(content):
        validator.validate(value)


def test_examples_are_of_what_there_is() -> None:
    operations = {route.operation: route for route in ROUTES}
    assert {*examples.BODIES, *examples.NAMES_OF, *examples.HEADERS_OF} <= operations.keys()
    assert {*examples.NAMES} <= {name for route in ROUTES for name in names_of(route.path)}
    for operation, headers in examples.HEADERS_OF.items():
        assert headers.keys() <= {*operations[operation].headers}


def test_generators_of_clients_understand_the_schemas() -> None:
    """openapi-generator 7 refuses a document, or makes code that does not compile, where one of these is not so."""
    for where, schema in SCHEMAS:
        assert schema.get("type") != "array" or "items" in schema, where
        assert "const" not in schema or isinstance(schema["const"], dict), where
        if isinstance(kinds := schema.get("type"), str | list):
            numbers = {"integer", "number"} & set([kinds] if isinstance(kinds, str) else kinds)
            assert not numbers or "format" in schema, where
            assert kinds != "object" or schema.get("default") != {}, where
        if isinstance(choices := schema.get("anyOf"), list):
            assert not any(choice.get("type") == "array" for choice in choices), where
            assert not [choice for choice in choices if "anyOf" in choice], where
            assert not [
                choice for choice in choices if "additionalProperties" in choice or choice.get("format") == "date-time"
            ], where
            several = len([choice for choice in choices if choice != NULL]) > 1
            assert not several or ("default" not in schema and NULL not in choices), where
            assert "discriminator" not in schema, where
    for name, operation in OPERATIONS.items():
        for parameter in operation.get("parameters", ()):
            assert parameter["schema"].get("type") != "array" or "default" not in parameter["schema"], name
        for response in operation["responses"].values():
            assert not [link for link in response.get("links", {}).values() if "requestBody" in link], name


def test_a_choice_of_which_only_one_fits_says_so() -> None:
    publish = DOCUMENT["components"]["schemas"]["PublishRequest"]["properties"]
    binary = {"$ref": "#/components/schemas/Binary"}
    assert publish["routing_key"]["oneOf"] == [{"type": "string"}, binary]
    reply_to = DOCUMENT["components"]["schemas"]["MessageProperties"]["properties"]["reply_to"]
    assert len(reply_to["oneOf"]) == 3
    values = DOCUMENT["components"]["schemas"]["BridgeSettings"]["properties"]["set_headers"]["additionalProperties"]
    assert "anyOf" in values, "7 is an integer and a number"


async def test_every_code_of_a_route_is_a_problem() -> None:
    for route in ROUTES:
        assert set(route.codes) <= PROBLEMS.keys(), route.operation


async def test_the_page_is_served_from_here_only(client: httpx.AsyncClient) -> None:
    response = await client.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy
    assert not re.findall(r"https?://|//[a-z]", response.text)
    assert "<script>" not in response.text
    for link in re.findall(r'(?:src|href)="(/docs/[^"]+)"', response.text):
        asset = await client.get(link)
        assert asset.status_code == 200, link
        assert asset.headers["x-content-type-options"] == "nosniff"
    assert "http" not in (await client.get("/docs/start.js")).text


@pytest.mark.parametrize("name", ASSETS)
async def test_assets(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(f"/docs/{name}")
    assert response.headers["content-type"].startswith(ASSETS[name][0])
    assert len(response.content) > 100


async def test_assets_cost_no_more_than_their_files(client: httpx.AsyncClient) -> None:
    """Their package reads several megabytes more when it is imported, and a stranger may ask for them."""
    assert (await client.get("/docs/preset.js")).status_code == 200
    assert "offapi" not in sys.modules


async def test_the_style_sheet_loads_nothing(client: httpx.AsyncClient) -> None:
    css = (await client.get("/docs/swagger.css")).text
    assert not re.findall(r"url\(\s*['\"]?https?:", css)
    assert "@import" not in css


async def test_every_problem_has_its_place_on_the_page(client: httpx.AsyncClient) -> None:
    text = (await client.get("/docs/errors")).text
    for code in PROBLEMS:
        assert f'id="{code}"' in text
    assert "`" not in text
    assert (await client.get("/docs/nonsense")).status_code == 404


@pytest.mark.parametrize("accept", ["*/*", "", "application/json", "application/json, text/html;q=0.5"])
async def test_the_root_says_where_to_go(client: httpx.AsyncClient, accept: str) -> None:
    found = (await client.get("/", headers={"accept": accept})).json()
    assert (found["docs"], found["openapi"]) == ("/docs", "/openapi.json")


async def test_a_browser_is_sent_from_the_root_to_the_page(client: httpx.AsyncClient) -> None:
    accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    answer = await client.get("/", headers={"accept": accept})
    assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (303, "/docs", "accept")
    page = await client.get(answer.headers["location"], headers={"accept": accept})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (await client.get("/docs/")).text == page.text
