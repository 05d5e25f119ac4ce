"""The methods of 0-9-1 as pamqp, pika and py-amqp write and read them: octet for octet.

Each writes the reserved fields in its own way, or not at all, so messages have them at their defaults here. Where a
library itself departs from the definition, a table says in what.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import pamqp.commands
import pytest
from amqp.channel import Channel
from amqp.connection import Connection
from amqp.serialization import dumps, loads
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import spec as pika_spec

from gateway.classic import methods as m
from gateway.v091.dialect import RABBITMQ
from gateway.wire.types import BitType, FieldType, Integer, LongString, ShortString, TableType
from tests.classic.values import TABLES
from tests.definitions.definitions import definition

SAID: Final = {method.name: method for method in definition("amqp0-9-1.extended.xml").methods}
METHODS: Final = [method for method in RABBITMQ.methods.values() if method.title in SAID]
EACH = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)

FEW: Final = settings(max_examples=25)
NAMES: Final = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40)
"""What all of them take for a string."""
KEYS: Final = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=20)
VALUES: Final[Mapping[type[FieldType], st.SearchStrategy[Any]]] = {
    BitType: st.booleans(),
    ShortString: NAMES,
    LongString: NAMES.map(str.encode),
    # In the order in which pamqp writes it, whatever the order was.
    TableType: st.dictionaries(KEYS, st.booleans() | NAMES, max_size=3).map(lambda table: dict(sorted(table.items()))),
}


def reserved(method: type[m.Method]) -> set[str]:
    """The fields that 0-9-1 reserves, by our names."""
    fields = zip(method.layout, SAID[method.title].fields, strict=True)
    return {name for (name, _), field in fields if field.name.startswith("reserved")}


def messages(method: type[m.Method]) -> st.SearchStrategy[m.Method]:
    """Any of a kind, with what is reserved at its default."""
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for name, kind in method.layout:
        if name in reserved(method):
            strategies[name] = st.just(kind.default)
        elif isinstance(kind, Integer):
            strategies[name] = st.integers(kind.minimum, kind.maximum)
        else:
            strategies[name] = VALUES[type(kind)]
    return st.builds(method, **strategies)


def test_every_method_is_here() -> None:
    assert len(METHODS) == len(SAID) == 64


# ---------------------------------------------------------------------------------------------------- pamqp

PAMQP_NAMES: Final = {"class_id_": "class_id", "method_id_": "method_id", "type": "exchange_type"}


@EACH
def test_as_pamqp(method: type[m.Method], monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = pamqp.commands.INDEX_MAPPING[method.key]
    # Brokers do not hold names to the definition's pattern, and neither do we.
    monkeypatch.setattr(kind, "validate", lambda theirs: None, raising=False)

    @FEW
    @given(messages(method).filter(lambda message: getattr(message, "delivery_tag", 0) < 1 << 63))  # pamqp's are signed
    def check(message: m.Method) -> None:
        octets = message.encode(TABLES)
        theirs = kind.__new__(kind)  # its __init__ warns of some values, and refuses others
        theirs.unmarshal(octets[4:])
        for name, type_ in method.layout:
            if name not in reserved(method):
                read, value = getattr(theirs, PAMQP_NAMES.get(name, name)), getattr(message, name)
                assert read == value or (isinstance(type_, LongString) and read == value.decode()), name
        assert theirs.marshal() == octets[4:]

    check()


@EACH
def test_replies_are_pamqps(method: type[m.Method]) -> None:
    theirs: Any = pamqp.commands.INDEX_MAPPING[method.key]
    replies = [reply.__name__ for reply in method.replies if RABBITMQ.methods.get(reply.key) is reply]
    assert [reply.replace(".", "") for reply in theirs.valid_responses] == replies


# ----------------------------------------------------------------------------------------------------- pika


@EACH
def test_as_pika(method: type[m.Method]) -> None:
    kind = pika_spec.methods[method.key]

    @FEW
    @given(messages(method))
    def check(message: m.Method) -> None:
        octets = message.encode(TABLES)
        theirs = kind.__new__(kind)
        theirs.decode(octets, 4)
        if isinstance(message, m.ConnectionUpdateSecret):
            theirs.new_secret = theirs.mechanisms  # pika reads it into another name than it writes it from
        assert b"".join(theirs.encode()) == octets[4:]

    check()


# -------------------------------------------------------------------------------------------------- py-amqp

SIGNATURES: Final[Mapping[type[m.Method], Callable[..., Any]]] = {
    m.ConnectionStartOk: Connection._on_start,
    m.ConnectionTuneOk: Connection._on_tune,
    m.ConnectionOpen: Connection._on_tune_sent,
    m.ConnectionClose: Connection.close,
    m.ChannelClose: Channel.close,
    m.ExchangeDeclare: Channel.exchange_declare,
    m.ExchangeDelete: Channel.exchange_delete,
    m.ExchangeBind: Channel.exchange_bind,
    m.ExchangeUnbind: Channel.exchange_unbind,
    m.QueueDeclare: Channel.queue_declare,
    m.QueueBind: Channel.queue_bind,
    m.QueueUnbind: Channel.queue_unbind,
    m.QueueDelete: Channel.queue_delete,
    m.QueuePurge: Channel.queue_purge,
    m.BasicQos: Channel.basic_qos,
    m.BasicConsume: Channel.basic_consume,
    m.BasicCancel: Channel.basic_cancel,
    m.BasicPublish: Channel._basic_publish,
    m.BasicGet: Channel.basic_get,
    m.BasicAck: Channel.basic_ack,
    m.BasicReject: Channel.basic_reject,
}
"""Methods that py-amqp writes: the function whose ``argsig`` is their format."""


class Recorder(Channel):  # type: ignore[misc]  # py-amqp is not typed
    """A channel that sends nowhere, and keeps the formats of what it would send."""

    def __init__(self) -> None:
        self.formats: dict[tuple[int, int], str] = {}
        self.is_open = False

    def send_method(self, sig: tuple[int, int], format: str | None = None, *rest: Any, **options: Any) -> None:
        self.formats[sig] = format or ""


@cache
def formats() -> Mapping[int, str]:
    """Every method that py-amqp writes or reads: key -> how it calls the types of its fields, a letter each."""
    channel = Recorder()
    channel.open()
    for say in (channel.tx_select, channel.tx_commit, channel.tx_rollback, channel.basic_recover):
        say()
    channel.basic_recover_async()
    channel.confirm_select(nowait=True)
    channel._on_flow(True)
    channel.flow(True)
    found = {**channel.formats}
    for table in (Channel._METHODS, Connection._METHODS):
        found |= {sig: method.args or "" for sig, method in table.items()}
    keys = {sig[0] << 16 | sig[1]: format for sig, format in found.items()}
    return keys | {
        method.key: inspect.signature(function).parameters["argsig"].default for method, function in SIGNATURES.items()
    }


PY_AMQP: Final[Mapping[type[m.Method], str]] = {
    m.ConnectionOpenOk: "py-amqp does not look at its argument",
    m.ConnectionSecure: "py-amqp reads a short string, where the definition has a long one",
    m.ConnectionSecureOk: "py-amqp does not answer a challenge",
    m.ConnectionBlocked: "py-amqp names no format for it",
    m.ConnectionUpdateSecret: "py-amqp does not know it",
    m.ConnectionUpdateSecretOk: "py-amqp does not know it",
    m.ChannelOpenOk: "py-amqp does not look at its argument",
    m.BasicNack: "py-amqp reads the first two of its three fields, and never sends it",
}
"""Methods of which py-amqp knows no format, or a shorter one."""


@EACH
def test_as_py_amqp(method: type[m.Method]) -> None:
    format = formats().get(method.key)
    whole = format is not None and len(format) == len(method.layout) and method is not m.ConnectionSecure
    assert whole is (method not in PY_AMQP)
    if format is None or not whole:
        return

    @FEW
    @given(messages(method))
    def check(message: m.Method) -> None:
        octets = message.encode(TABLES)
        values = [getattr(message, name) for name, _ in method.layout]
        assert dumps(format, values) == octets[4:]
        read, end = loads(format, octets, 4)
        assert end == len(octets)
        assert read == [value.decode() if isinstance(value, bytes) else value for value in values]

    check()
