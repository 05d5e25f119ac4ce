"""What a target says would be lost is what is lost, by name; and the explanation says the same, field by field."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from gateway.amqp.message import ArrivalTime, Message, Properties, RawProperties, ReplyTo, UuidMessageId
from gateway.amqp.values import Typed
from gateway.core.sources.dead_letters import dead_letter_copy
from gateway.errors import FrameSyntaxError
from gateway.fidelity import LOSSES, RESERVED, copy_of, forward, strip
from gateway.translation import WHY, target_of
from gateway.upstreams.publishing.isolation import marked
from gateway.v010.structs import DeliveryProperties, FragmentProperties, MessageProperties
from gateway.v010.translate import read_message
from gateway.v010.version import V0_10
from gateway.v010_draft import translate as draft
from gateway.v010_draft.methods import MessageTransfer
from gateway.v010_draft.tables import Tables
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.translation.ends import ENDS, samples

RABBITMQ, QPID, NATIVE, OTHER = (ENDS[name] for name in ("0-9-1 rabbitmq", "0-9-1 qpid", "0-10 qpid", "0-10 other"))
SEEN: set[str] = set()
"""Names of losses that a test has seen."""


def lost(message: Message, target: Any) -> dict[str, str]:
    """field -> name of the loss."""
    found = {loss.field: loss.name for loss in target.losses(message)}
    SEEN.update(found.values())
    return found


def segment(*items: Any) -> bytes:
    return b"".join(struct.pack(">I", len(octets)) + octets for octets in (item.encode() for item in items))


@pytest.mark.parametrize("end", ENDS)
def test_a_user_id_is_lost_unless_it_is_the_login(end: str) -> None:
    for message in (
        Message(b"", Properties(user_id="ann", type="t", headers={"a": 1})),
        target_of(V0_9_1, login="ann").there_and_back(Message(b"", Properties(user_id="ann"))),
        target_of(V0_10, login="ann").there_and_back(Message(b"", Properties(user_id="ann"))),
        target_of(V0_10, "cpp", login="ann").there_and_back(Message(b"", Properties(user_id="ann"))),
    ):
        assert lost(message, ENDS[end]) == {"user_id": "user_id"}
        there = ENDS[end].there_and_back(message)
        assert there.properties.user_id is None
        assert there.properties.headers is not None
        assert there.properties.headers[RESERVED] == {"user_id": "ann"}
        assert lost(there, ENDS[end]) == {}
    assert lost(Message(b"", Properties(user_id="guest")), ENDS[end]) == {}


@pytest.mark.parametrize("end", [RABBITMQ, QPID])
@pytest.mark.parametrize("wrap", [lambda message: message, lambda message: Message(b"", message.properties)])
def test_a_content_header_over_one_frame(end: Any, wrap: Any) -> None:
    small = target_of(end.version, dialect=end.product, frame_max=4_096, clock=lambda: 0.0)
    message = wrap(end.there_and_back(Message(b"", Properties(headers={"a": "x" * 4_045}))))
    assert lost(message, small) == {}
    (loss,) = small.losses(forward(message, {"id": "0190" * 8}))
    assert (loss.name, loss.stops) == ("content_header", True)
    assert "one frame takes 4088" in loss.detail
    SEEN.add(loss.name)
    assert lost(forward(message, {"id": "0190" * 8}), NATIVE) == {}


def test_the_size_is_seen_where_the_reserved_header_makes_it_too_large() -> None:
    """Header names are in the notes about types: a message that fits may not fit with them."""
    small = target_of(V0_9_1, frame_max=4_096)
    headers = {f"{'k' * 200}{number}": UUID(int=number) for number in range(10)}
    for message in (
        Message(b"", Properties(headers=headers)),
        OTHER.there_and_back(Message(b"", Properties(headers=headers))),
        OTHER.there_and_back(Message(b"", Properties(headers={"k" * 100: {"k" * 100: [headers] * 2}}))),
    ):
        assert lost(message, small) == {"headers": "content_header"}
    fits = OTHER.there_and_back(Message(b"", Properties(headers={"k": UUID(int=1), "d": Decimal("1e-300")})))
    assert lost(fits, small) == {}


def test_what_0_10_says_of_the_transfer() -> None:
    message = MessageProperties(application_headers={"a": 1})
    strange = b"\x00\x00\x00\x04\x7f\x01\x00\x00"
    cases: list[tuple[bytes, dict[str, str], dict[str, str]]] = [
        (segment(message), {}, {}),
        (segment(message, DeliveryProperties(priority=5)), {}, {}),
        (
            segment(FragmentProperties(first=True), message),
            {"fragment_properties": "fragment"},
            {},
        ),
        (segment(DeliveryProperties(resume_id="r"), message), *[{"delivery_properties": "resume"}] * 2),
        (segment(DeliveryProperties(resume_ttl=5), message), *[{"delivery_properties": "resume"}] * 2),
        (segment(message) + strange, {"struct 127.1": "struct"}, {}),
    ]
    for octets, classic, native in cases:
        for broker_j in (True, False):
            came = read_message(octets, b"", broker_j)
            assert lost(came, RABBITMQ) == classic
            assert lost(came, NATIVE) == native
            there = NATIVE.there_and_back(came)
            assert there.raw is not None
            if not classic or "fragment" in classic.values() or "struct" in classic.values():
                assert lost(there, RABBITMQ) == classic, "what does not belong to the transfer goes along"


def test_what_0_10_says_besides_stays_with_properties_that_are_changed() -> None:
    message = MessageProperties(application_headers={"CC": ["a"], "x-death": [], "n": 1})
    strange = b"\x00\x00\x00\x04\x7f\x01\x00\x00"
    octets = segment(DeliveryProperties(resume_ttl=5), FragmentProperties(first=True), message) + strange
    came = read_message(octets, b"")
    classic = {"fragment_properties": "fragment", "struct 127.1": "struct"}
    for changed in (
        forward(came, {"id": "0190"}),
        forward(came, {}, set_headers={"z": 1}),
        copy_of(came, {}),
        strip(forward(came, {})),
        marked(forward(came, {})),
        dead_letter_copy(came, {"id": "0190"}, "guest"),
    ):
        assert changed.raw is None, "else the octets would go along by themselves"
        found = {field: name for field, name in lost(changed, RABBITMQ).items() if name != "held_header"}
        assert found == {**classic, "delivery_properties": "resume"}
        assert lost(changed, NATIVE).get("delivery_properties") == "resume"
        for target in (NATIVE, OTHER):
            there = target.there_and_back(changed)
            assert lost(there, RABBITMQ) == classic


@pytest.mark.parametrize("target", [RABBITMQ, NATIVE])
def test_what_cannot_be_read_cannot_be_sent(target: Any) -> None:
    def broken(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    for dialect in ("x", "0-10", "0-10 Broker-J"):
        message = Message(b"", None, RawProperties(b"\x00", dialect, broken))
        assert lost(message, target) == {"properties": "untranslatable"}


BARE: list[tuple[dict[str, Any], Any, dict[str, str]]] = [
    ({"priority": 200, "timestamp": 5, "cluster_id": "c"}, NATIVE, dict.fromkeys(
        ("priority", "timestamp", "cluster_id"), "property")),
    ({"message_id": "m-1", "type": "t"}, NATIVE, {"message_id": "property"}),
    ({"type": "\udcff"}, NATIVE, {"type": "property"}),
    ({"type": "t", "headers": {"x-jms-type": "u"}}, NATIVE, {"type": "property"}),
    ({"headers": {"x-jms-type": "t"}}, NATIVE, {}),
    ({"reply_to": ReplyTo("x", "k"), "correlation_id": b"\xff", "app_id": b"\xff", "cluster_id": "c"}, RABBITMQ,
        dict.fromkeys(("correlation_id", "app_id", "cluster_id"), "property")),
    ({"reply_to": ReplyTo("x", "it's"), "message_id": UuidMessageId(str(UUID(int=5)))}, RABBITMQ,
        {"reply_to": "property"}),
    ({"message_id": f"ID:{UUID(int=5)}", "reply_to": "direct://x//q"}, NATIVE, {}),
    ({"message_id": str(UUID(int=5))}, NATIVE, {}),
    ({"expiration": "soon"}, RABBITMQ, {"expiration": "property"}),
    ({"expiration": "5"}, QPID, {}),
    ({"headers": {"u": UUID(int=5), "n": {"l": [UUID(int=5), 1]}}}, RABBITMQ,
        {"headers/u": "header_type", "headers/n/l/0": "header_type"}),
    ({"headers": {"t": Typed("uint8", 5)}}, NATIVE, {"headers/t": "header_type"}),
    ({"headers": {"t": Typed("uint8", 5)}}, OTHER, {}),
    ({"headers": {"CC": ["x"], "x-first-death-queue": "q"}}, RABBITMQ,
        {"headers/CC": "held_header", "headers/x-first-death-queue": "held_header"}),
    ({"user_id": "ann"}, RABBITMQ, {"user_id": "user_id"}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "target", "expected"), BARE)
def test_without_the_reserved_header_what_has_no_home_is_lost(values: Any, target: Any, expected: Any) -> None:
    message = Message(b"", Properties(**values))
    sent = forward(message, {"id": "0190"})
    assert {field for field, name in lost(sent, target).items() if name != "user_id"} == set()
    assert lost(strip(sent), target) == expected
    there = target.there_and_back(strip(sent))
    assert RESERVED not in (there.properties.headers or {})
    explained = target.explain(message, leave_out=True)
    assert {item.field: item.result for item in explained.fields if item.result == "lost"} == dict.fromkeys(
        expected, "lost"
    )
    assert {loss.field: loss.name for loss in explained.losses} == expected


def test_what_the_transitional_draft_alone_has_is_lost_elsewhere() -> None:
    method = MessageTransfer(
        0, "", False, False, False, 0, 0, 0, 0, 0, "", "", "", "", "", "", "", 0, "", "", "", "tx", b"token", {}, b"",
    )  # fmt: skip
    octets = method.encode(Tables())
    message = draft.read_message(draft.read_transfer(octets, 4, len(octets)), b"")
    for version in VERSIONS:
        assert lost(message, target_of(version)) == {"transaction_id": "struct", "security_token": "struct"}
    assert target_of(V0_10, dialect="transitional").losses(message) == ()
    changed = forward(message, {}, set_headers={"z": 1})
    for target in (RABBITMQ, NATIVE, target_of(V0_10, dialect="transitional")):
        assert lost(changed, target) == {"transaction_id": "struct", "security_token": "struct"}


def test_headers_that_are_more_than_a_frame_of_the_transitional_draft() -> None:
    message = Message(b"", Properties(headers={"a": "x" * 60_000, "b": "x" * 60_000, "c": "x" * 60_000}))
    assert lost(message, target_of(V0_10, dialect="transitional")) == {"headers": "content_header"}


def test_every_loss_has_been_seen() -> None:
    assert LOSSES.keys() == SEEN
    for loss in LOSSES.values():
        assert loss.what.endswith(".")
        assert loss.when.endswith(".")


# -------------------------------------------------------------------------------------------------- explaining


@pytest.mark.parametrize("end", ENDS)
def test_an_explanation_agrees_with_what_is_sent(end: str) -> None:
    target = ENDS[end]
    for properties in samples():
        message = Message(b"x", properties)
        explained = target.explain(message)
        assert explained.losses == ()
        assert explained.message is not None
        seen = explained.message.properties
        for item in explained.fields:
            assert item.result in ("same", "mapped", "carried")
            assert bool(item.why) == (item.result != "same"), item
            if not item.field.startswith("headers/") and item.field != "type":
                assert getattr(seen, item.field) == item.becomes
        fields = [item.field for item in explained.fields]
        assert len(fields) == len(set(fields))
        changed = any(item.result != "same" for item in explained.fields)
        empty = properties.headers == {}  # it may be noted that there were headers, and none
        if "x-jms-type" not in (properties.headers or {}) and not empty:  # or no property of that value
            assert (RESERVED in (seen.headers or {})) <= changed
        passed = target.explain(target.there_and_back(message))
        if target.there_and_back(message).properties == properties:
            assert {item.result for item in passed.fields} <= {"same"}


def test_every_reason_is_given_somewhere() -> None:
    given = {
        item.field
        for target in ENDS.values()
        for properties in [*samples(), Properties(user_id="ann")]
        for item in target.explain(Message(b"", properties)).fields
        if item.why
    }
    assert {field for field in given if not field.startswith("headers")} == WHY.keys()


def test_annotate_false_leaves_the_reserved_header_out() -> None:
    target = target_of(V0_10, annotate=False)
    explained = target.explain(Message(b"", Properties(timestamp=5)))
    assert [item.result for item in explained.fields] == ["lost"]
    assert explained.message is not None
    assert explained.message.properties == Properties(timestamp=ArrivalTime(5)), "it counts as the broker's"


def test_what_cannot_be_sent_is_explained_all_the_same() -> None:
    explained = RABBITMQ.explain(Message(b"", Properties(message_id="x" * 256, headers={"a": 1})))
    assert [(item.field, item.result) for item in explained.fields] == [("message_id", "lost"), ("headers/a", "lost")]
    assert "message_id: 256 octets" in explained.fields[0].why
    assert [loss.name for loss in explained.losses] == ["untranslatable"]
    assert explained.message is None
    native = NATIVE.explain(Message(b"", Properties(headers={"a": Typed("strange", 1)})))
    assert [loss.name for loss in native.losses] == ["untranslatable"] or native.message is None


def test_names_that_are_no_text_are_printable() -> None:
    explained = NATIVE.explain(Message(b"", Properties(headers={"\udcff": {"\udcfe": 1}})))
    fields = {item.field: item for item in explained.fields}
    assert set(fields) == {"headers/\\udcff", "headers/\\udcff/\\udcfe"}
    assert all(item.result == "mapped" for item in fields.values())
