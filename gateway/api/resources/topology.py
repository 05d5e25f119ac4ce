"""``/v1/brokers/{broker}/queues``, ``/exchanges`` and ``/bindings``: declare, inspect, delete, list.

Listing shows what was declared through the gateway: AMQP itself has no way to ask for more.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.amqp.values import Table
from gateway.api.about.schemas import (
    Binding,
    BindingQuery,
    Bindings,
    BindingSettings,
    DeleteExchangeQuery,
    DeleteQueueQuery,
    Exchange,
    Exchanges,
    ExchangeSettings,
    Known,
    PageQuery,
    Queue,
    Queues,
    QueueSettings,
    RemovedMessages,
)
from gateway.api.http.call import Call, answer, invalid_value, no_content, page_headers
from gateway.api.http.members import repeated
from gateway.api.http.problems import ApiProblem, wrong_parameter
from gateway.api.http.routing import SHORT_STRING_MAX, Route, Scope
from gateway.core.topology import BINDING, EXCHANGE, QUEUE, BindingPlace
from gateway.errors import RemoteError
from gateway.notation.messages import Binary
from gateway.notation.values import ValueProblem, octets_from_json, table_from_json, table_to_json, text_to_json
from gateway.validation import place_of

COMMAND_INVALID: Final = 503
"""What a broker says to a type of exchange that it does not have, and ends the connection (0-9-1 section 1.4.2.1)."""


def _arguments(json: dict[str, Any]) -> Table:
    try:
        return table_from_json(json)
    except ValueProblem as problem:
        raise invalid_value(problem.under("arguments")) from None


# --------------------------------------------------------------------------------------------------- queues


async def put_queue(call: Call) -> Response:
    """Declare."""
    broker, queue = call.names["broker"], call.names["queue"]
    call.gateway.broker(broker)
    settings = await call.json(QueueSettings)
    spec = {"name": text_to_json(queue), **msgspec.to_builtins(settings)}
    made = await call.gateway.topology.declare_queue(
        broker,
        queue,
        durable=settings.durable,
        auto_delete=settings.auto_delete,
        arguments=_arguments(settings.arguments),
        spec=spec,
    )
    return answer(await _queue(call), 201 if made.created else 200)


async def get_queue(call: Call) -> Response:
    """Inspect."""
    return answer(await _queue(call))


async def delete_queue(call: Call) -> Response:
    """Delete."""
    query = call.query(DeleteQueueQuery)
    count = await call.gateway.topology.delete_queue(
        call.names["broker"], call.names["queue"], if_unused=query.if_unused, if_empty=query.if_empty
    )
    return answer(RemovedMessages(messages=count))


async def purge_queue(call: Call) -> Response:
    """Empty."""
    count = await call.gateway.topology.purge_queue(call.names["broker"], call.names["queue"])
    return answer(RemovedMessages(messages=count))


async def list_queues(call: Call) -> Response:
    """What is known."""
    return await _known(call, QUEUE, lambda known: Queues(queues=known))


async def _queue(call: Call) -> Queue:
    broker, queue = call.names["broker"], call.names["queue"]
    info, declared = await call.gateway.topology.queue(broker, queue)
    settings = {
        "durable": info.durable if info.durable is not None else declared.get("durable"),
        "auto_delete": declared.get("auto_delete"),
        "arguments": table_to_json(info.arguments) if info.arguments is not None else declared.get("arguments"),
    }
    return Queue(
        broker=broker,
        name=text_to_json(queue),
        messages=info.message_count,
        consumers=info.consumer_count,
        settings=settings,
        **settings,
    )


# ------------------------------------------------------------------------------------------------ exchanges


async def put_exchange(call: Call) -> Response:
    """Declare."""
    broker, exchange = call.names["broker"], call.names["exchange"]
    call.gateway.broker(broker)
    _refuse_default(exchange)
    settings = await call.json(ExchangeSettings)
    spec = {"name": text_to_json(exchange), **msgspec.to_builtins(settings)}
    try:
        made = await call.gateway.topology.declare_exchange(
            broker,
            exchange,
            type=settings.type,
            durable=settings.durable,
            auto_delete=settings.auto_delete,
            internal=settings.internal,
            arguments=_arguments(settings.arguments),
            spec=spec,
        )
    except RemoteError as error:
        if error.reply_code != COMMAND_INVALID:
            raise
        raise invalid_value(ValueProblem(f"the broker has no such type: {error}", "type")) from None
    return answer(await _exchange(call), 201 if made.created else 200)


async def get_exchange(call: Call) -> Response:
    """Inspect."""
    return answer(await _exchange(call))


async def delete_exchange(call: Call) -> Response:
    """Delete."""
    _refuse_default(call.names["exchange"])
    query = call.query(DeleteExchangeQuery)
    await call.gateway.topology.delete_exchange(call.names["broker"], call.names["exchange"], if_unused=query.if_unused)
    return no_content()


async def list_exchanges(call: Call) -> Response:
    """What is known."""
    return await _known(call, EXCHANGE, lambda known: Exchanges(exchanges=known))


async def _exchange(call: Call) -> Exchange:
    broker, exchange = call.names["broker"], call.names["exchange"]
    if not exchange:
        call.gateway.broker(broker)
        settings: dict[str, Any] = {
            "type": "direct", "durable": True, "auto_delete": False, "internal": False, "arguments": {},
        }  # fmt: skip
        return Exchange(broker=broker, name="", settings=settings, **settings)
    found, declared = await call.gateway.topology.exchange(broker, exchange)
    settings = {
        "type": found.type if found.type is not None else declared.get("type"),
        "durable": found.durable if found.durable is not None else declared.get("durable"),
        "auto_delete": declared.get("auto_delete"),
        "internal": declared.get("internal"),
        "arguments": table_to_json(found.arguments) if found.arguments is not None else declared.get("arguments"),
    }
    return Exchange(broker=broker, name=text_to_json(exchange), settings=settings, **settings)


def _refuse_default(exchange: str) -> None:
    if not exchange:
        raise ApiProblem("unsupported", "the default exchange is neither declared nor deleted")


# ------------------------------------------------------------------------------------------------- bindings


async def post_binding(call: Call) -> Response:
    """Bind."""
    broker = call.names["broker"]
    call.gateway.broker(broker)
    place = _place(await call.json(BindingSettings))
    binding = _binding(broker, place)
    made = await call.gateway.topology.bind(broker, place, _kept(binding))
    return answer(binding, 201 if made.created else 200)


async def delete_binding(call: Call) -> Response:
    """Unbind."""
    query = call.query(BindingQuery)
    try:
        arguments = msgspec.json.decode(query.arguments.encode("utf-8", "surrogateescape"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong_parameter("arguments", f"this is not a JSON object: {error}") from None
    if (path := repeated(query.arguments.encode("utf-8", "surrogateescape"))) is not None:
        raise wrong_parameter("arguments", f"{place_of(path)}: the member is in one object twice; give it once")
    place = _place(
        BindingSettings(
            exchange=query.exchange,
            queue=query.queue or None,
            destination=query.destination or None,
            binding_key=query.binding_key,
            routing_key=query.routing_key,
            arguments=arguments,
        )
    )
    broker = call.names["broker"]
    await call.gateway.topology.unbind(broker, place, _kept(_binding(broker, place)))
    return no_content()


async def list_bindings(call: Call) -> Response:
    """What is known."""
    query = call.query(PageQuery)
    page, cursor = await call.gateway.topology.known(BINDING, call.names["broker"], query.cursor or None, query.limit)
    kept = [item.spec["binding"] for item in page]
    body = Bindings(bindings=[msgspec.convert({**each, "binding_key": each["routing_key"]}, Binding) for each in kept])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


def _place(settings: BindingSettings) -> BindingPlace:
    if (settings.queue is None) == (settings.destination is None):
        detail = "exactly one of queue and destination must be there"
        raise ApiProblem("invalid_request", f"queue: {detail}", errors=[("/queue", detail), ("/destination", detail)])
    field, key = settings.key
    try:
        return BindingPlace(
            _name(settings.exchange, "exchange") if settings.exchange != DEFAULT_EXCHANGE else "",
            _name(settings.queue, "queue") if settings.queue is not None else None,
            _name(settings.destination, "destination") if settings.destination is not None else None,
            _name(key, field),
            _arguments(settings.arguments),
        )
    except ValueProblem as problem:
        raise invalid_value(problem) from None


def _name(value: str | Binary, field: str) -> str:
    if isinstance(value, Binary):
        try:
            text = octets_from_json(value.value).decode("utf-8", "surrogateescape")
        except ValueProblem as problem:
            raise problem.under(field, "value") from None
    else:
        text = value
    if len(text.encode("utf-8", "surrogateescape")) > SHORT_STRING_MAX:
        raise ValueProblem(f"longer than {SHORT_STRING_MAX} octets", field)
    return text


def _binding(broker: str, place: BindingPlace) -> Binding:
    return Binding(
        broker=broker,
        exchange=text_to_json(place.exchange),
        queue=text_to_json(place.queue) if place.queue is not None else None,
        destination=text_to_json(place.destination) if place.destination is not None else None,
        binding_key=text_to_json(place.routing_key),
        routing_key=text_to_json(place.routing_key),
        arguments=table_to_json(place.arguments),
    )


def _kept(binding: Binding) -> dict[str, Any]:
    """A binding as it is remembered: its key has the old name there."""
    spec: dict[str, Any] = msgspec.to_builtins(binding)
    del spec["binding_key"]
    return spec


async def _known(call: Call, kind: str, page_of: Any) -> Response:
    query = call.query(PageQuery)
    page, cursor = await call.gateway.topology.known(kind, call.names["broker"], query.cursor or None, query.limit)
    known = [
        Known(name=item.spec["name"], settings={key: value for key, value in item.spec.items() if key != "name"})
        for item in page
    ]
    return answer(page_of(known), headers=page_headers(call, cursor, limit=query.limit))


_BROKER: Final = "/v1/brokers/{broker}"
_QUEUE: Final = f"{_BROKER}/queues/{{queue}}"
_EXCHANGE: Final = f"{_BROKER}/exchanges/{{exchange}}"
_BINDINGS: Final = f"{_BROKER}/bindings"
_AWAY: Final = ("broker_not_found", "broker_unavailable", "broker_error", "access_refused")
_THERE: Final = (*_AWAY, "not_found")
_BODY: Final = ("malformed_json", "invalid_request", "invalid_value", "unsupported_media_type", "invalid_parameter")

ROUTES = (
    Route(
        "GET", f"{_BROKER}/queues", "list_queues", "List queues", list_queues, Scope.BROKER,
        {200: ("A page of the queues that were declared through the gateway.", Queues)},
        query=PageQuery, codes=("broker_not_found", "invalid_parameter"), tag="topology",
    ),
    Route(
        "PUT", _QUEUE, "put_queue", "Declare a queue", put_queue, Scope.BROKER,
        {200: ("It existed with the same settings.", Queue), 201: ("Created.", Queue)},
        body=QueueSettings, body_required=False,
        codes=(*_AWAY, *_BODY, "precondition_failed", "resource_locked"),
        description="409 `precondition_failed` where it exists with other settings.", tag="topology",
    ),
    Route(
        "GET", _QUEUE, "get_queue", "Inspect a queue", get_queue, Scope.QUEUE,
        {200: ("The queue; whether `messages` counts those that are out, the broker's capabilities say.", Queue)},
        codes=(*_THERE, "resource_locked"), tag="topology",
    ),
    Route(
        "DELETE", _QUEUE, "delete_queue", "Delete a queue", delete_queue, Scope.BROKER,
        {200: ("Deleted, with its messages.", RemovedMessages)}, query=DeleteQueueQuery,
        codes=(*_THERE, "precondition_failed", "resource_locked", "invalid_parameter"), tag="topology",
    ),
    Route(
        "POST", f"{_QUEUE}:purge", "purge_queue", "Empty a queue", purge_queue, Scope.BROKER,
        {200: ("All messages that were ready are gone.", RemovedMessages)}, codes=(*_THERE, "resource_locked"),
        tag="topology",
    ),
    Route(
        "GET", f"{_BROKER}/exchanges", "list_exchanges", "List exchanges", list_exchanges, Scope.BROKER,
        {200: ("A page of the exchanges that were declared through the gateway.", Exchanges)},
        query=PageQuery, codes=("broker_not_found", "invalid_parameter"), tag="topology",
    ),
    Route(
        "PUT", _EXCHANGE, "put_exchange", "Declare an exchange", put_exchange, Scope.BROKER,
        {200: ("It existed with the same settings.", Exchange), 201: ("Created.", Exchange)},
        body=ExchangeSettings, body_required=False,
        codes=(*_AWAY, *_BODY, "precondition_failed", "unsupported"), tag="topology",
    ),
    Route(
        "GET", _EXCHANGE, "get_exchange", "Inspect an exchange", get_exchange, Scope.EXCHANGE,
        {200: ("The exchange, as far as the version tells.", Exchange)}, codes=_THERE, tag="topology",
    ),
    Route(
        "DELETE", _EXCHANGE, "delete_exchange", "Delete an exchange", delete_exchange, Scope.BROKER,
        {204: ("Deleted.", None)}, query=DeleteExchangeQuery,
        codes=(*_THERE, "precondition_failed", "unsupported", "invalid_parameter"), tag="topology",
    ),
    Route(
        "GET", _BINDINGS, "list_bindings", "List bindings", list_bindings, Scope.BROKER,
        {200: ("A page of the bindings that were made through the gateway.", Bindings)},
        query=PageQuery, codes=("broker_not_found", "invalid_parameter"), tag="topology",
    ),
    Route(
        "POST", _BINDINGS, "post_binding", "Bind a queue or an exchange to an exchange", post_binding, Scope.BROKER,
        {200: ("It was there.", Binding), 201: ("Bound.", Binding)}, body=BindingSettings,
        codes=(*_THERE, *_BODY, "unsupported"), tag="topology",
    ),
    Route(
        "DELETE", _BINDINGS, "delete_binding", "Remove a binding", delete_binding, Scope.BROKER,
        {204: ("Removed.", None)}, query=BindingQuery,
        codes=(*_THERE, "invalid_request", "invalid_value", "invalid_parameter", "unsupported"), tag="topology",
    ),
)  # fmt: skip
