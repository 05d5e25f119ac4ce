"""What does not fit a struct is named by its place, with what would be right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.about.schemas import (
    AckRequest,
    DeleteQueueQuery,
    PageQuery,
    PublishRequest,
    PullRequest,
    ScheduledQuery,
)
from gateway.config import BridgeSettings, Config
from gateway.validation import Misfit, WrongField, culprits, explain, path_of, place_of, pointer_of

BRIDGE = {"source": {"broker": "a", "queue": "q"}, "target": {"broker": "b"}}


class Pair(msgspec.Struct):
    """Never right."""

    a: int = 0

    def __post_init__(self) -> None:
        """Say so."""
        raise WrongField("a", "it is never right")


class Whole(msgspec.Struct):
    """With something in it."""

    pairs: list[Pair]


def misfit(document: Any, kind: type, *, query: bool = False, what: str = "field") -> Misfit:
    """What is wrong with the document."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, kind, strict=not query)
    return explain(caught.value, document, kind, strict=not query, what=what)


@pytest.mark.parametrize(
    ("document", "kind", "pointer", "text"),
    [
        ({**BRIDGE, "acknowledge": "on-publish"}, BridgeSettings, "/acknowledge",
         "acknowledge: 'on-publish' is not one of on-confirm, dtx, unsafe-on-publish, unsafe-no-ack"),
        ({**BRIDGE, "delete_after": "x"}, BridgeSettings, "/delete_after",
         "delete_after: 'x' is not one of never, queue-length"),
        ({**BRIDGE, "delete_after": 0}, BridgeSettings, "/delete_after",
         "delete_after: expected an integer >= 1, got 0"),
        ({**BRIDGE, "target": {}}, BridgeSettings, "/target/broker", "target.broker: it is required, and missing"),
        ({**BRIDGE, "target": {"brokr": "b"}}, BridgeSettings, "/target/brokr",
         "target.brokr: there is no such field; did you mean broker? There are broker, exchange, routing_key"),
        ({**BRIDGE, "set_headers": {"ok": 1, "a.b/c": None}}, BridgeSettings, "/set_headers/a.b~1c",
         'set_headers."a.b/c": expected true or false or an integer or a number or a string, got null'),
        ({"messages": [{}, {"payload_encoding": "hex"}]}, PublishRequest, "/messages/1/payload_encoding",
         "messages[1].payload_encoding: 'hex' is not one of string, base64"),
        ({"routing_key": {"type": "q", "value": ""}}, PublishRequest, "/routing_key/type",
         "routing_key.type: 'q' is not one of binary"),
        ({"not_before": "morning"}, PublishRequest, "/not_before",
         "not_before: expected a time of RFC 3339 with an offset, got 'morning'"),
        ({"max_messages": 1001}, PullRequest, "/max_messages", "max_messages: expected an integer <= 1000, got 1001"),
        ({"target": {"broker": "b"}, "source": {"broker": "a"}, "remove_headers": ["a", 1]}, BridgeSettings,
         "/remove_headers/1", "remove_headers[1]: expected a string, got an integer"),
        ({"ack_ids": []}, AckRequest, "/ack_ids", "ack_ids: expected an array of length >= 1, got 0"),
        ([], PublishRequest, "", "the body: expected an object, got an array"),
    ],
)  # fmt: skip
def test_a_body(document: Any, kind: type, pointer: str, text: str) -> None:
    found = misfit(document, kind)
    assert (found.pointer, str(found)) == (pointer, text)


@pytest.mark.parametrize(
    ("document", "kind", "text"),
    [
        ({"limit": "abc"}, PageQuery, "limit: expected an integer, got 'abc'"),
        ({"limit": "0"}, PageQuery, "limit: expected an integer >= 1, got '0'"),
        ({"if_unused": "perhaps"}, DeleteQueueQuery, "if_unused: expected true or false, got 'perhaps'"),
        ({"state": "abc"}, ScheduledQuery, "state: 'abc' is not one of scheduled, refused"),
    ],
)
def test_a_query(document: dict[str, str], kind: type, text: str) -> None:
    assert str(misfit(document, kind, query=True, what="query parameter")) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"retention": {"bodies": "day"}}, "retention.bodies: 'day' is not one of never, until-settled, days"),
        ({"brokers": {"ok": {"url": "x"}, "a.b": {"url": "x", "required": 1}}},
         'brokers."a.b".required: expected true or false, got an integer'),
        ({"brokers": {"ok": {"url": "x"}, "a b": {"url": "x"}}},
         'brokers."a b": this name is not allowed: expected a string matching regex '
         "'^[A-Za-z0-9][A-Za-z0-9._-]*$'"),
        ({"api_keys": [{"sha256": "x"}]}, "api_keys[0].name: it is required, and missing"),
    ],
)  # fmt: skip
def test_a_setting(document: Any, text: str) -> None:
    assert str(misfit(document, Config, what="setting")) == text


def test_the_words_and_names_are_told_as_a_list_too() -> None:
    assert misfit({**BRIDGE, "mode": "copy"}, BridgeSettings).expected == ("move", "mirror")
    assert misfit({**BRIDGE, "target": {"x": 1}}, BridgeSettings).expected == ("broker", "exchange", "routing_key")


def test_a_long_name_or_value_is_cut() -> None:
    found = misfit({**BRIDGE, "n" * 10_000: 1}, BridgeSettings)
    assert len(found.pointer) < 100
    assert len(misfit({**BRIDGE, "mode": "m" * 10_000}, BridgeSettings).detail) < 200


def test_a_secret_of_the_wrong_type_is_not_repeated() -> None:
    found = misfit({"endpoints": {"e": {"url": "u", "auth": {"secret": ["hunter2"]}}}}, Config)
    assert str(found) == "endpoints.e.auth.secret: expected a string, got an array"


def test_what_a_struct_finds_itself() -> None:
    found = misfit({"pairs": [{"a": 1}]}, Whole)
    assert (found.pointer, str(found)) == ("/pairs/0/a", "pairs[0].a: it is never right")


def test_places_and_pointers() -> None:
    path = ("a", 0, "b.c", 'd"e', "f/g~h")
    assert place_of(path) == 'a[0]."b.c"."d\\"e"."f/g~h"'
    assert path_of(pointer_of(path)) == path
    assert place_of(()) == pointer_of(()) == ""


def test_the_culprits_of_a_problem() -> None:
    errors = [
        {"pointer": "/messages/0/payload", "detail": "a"},
        {"parameter": "limit", "detail": "b"},
        {"header": "If-Match", "detail": "c"},
        {"pointer": "", "detail": "d"},
    ]
    assert culprits({"detail": "limit: b", "errors": errors}) == [
        "messages[0].payload: a", "If-Match: c", "the body: d",
    ]  # fmt: skip
