"""Checks before the wire: requests that are known to make a broker close the channel, or the connection.

Everybody who publishes to an exchange shares its channel, so what one caller gets wrong would cost the others a
retry. What only the broker can know is found by :mod:`gateway.upstreams.publishing.isolation`.
"""

from __future__ import annotations

from typing import Final

from gateway.amqp.message import Properties
from gateway.amqp.values import Value
from gateway.errors import EncodeError
from gateway.session import Capabilities, Confirms

EXPIRATION_MAX: Final = (1 << 32) - 1
"""Longest ``expiration`` of classic brokers, in milliseconds: RabbitMQ closes the channel over more."""
COPY_HEADERS: Final = ("CC", "BCC")
"""Headers by which RabbitMQ routes further copies; anything but an array of strings there closes the channel."""
DELIVERY_MODES: Final = (2, 1, None)
"""RabbitMQ closes the channel over any other; no specification has another."""
DIRECT_REPLY: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's pseudo-queue: as ``reply_to`` it closes the channel of a publisher that does not consume from it there,
and the gateway's channels never do."""


def check(properties: Properties, capabilities: Capabilities, login: str, broker: str) -> None:
    """Refuse what makes this broker close the channel. Every publish passes here.

    Raises:
        EncodeError: it names the property, its value and what is wrong with it.
    """
    expiration = properties.expiration
    if expiration is not None:
        if not (expiration.isascii() and expiration.isdigit()):
            raise EncodeError(f"expiration: {expiration!r:.80} is no number of milliseconds")
        if capabilities.confirms is not Confirms.COMPLETION and int(expiration) > EXPIRATION_MAX:
            raise EncodeError(f"expiration: {expiration:.80} is over {EXPIRATION_MAX} milliseconds")
    if properties.delivery_mode not in DELIVERY_MODES:
        raise EncodeError(f"delivery_mode: {properties.delivery_mode} is neither 1 nor 2")
    user = properties.user_id
    if user is not None and user not in (login, login.encode()) and capabilities.checks_user_id:
        raise EncodeError(f"user_id: {user!r} is not the login of broker {broker}")
    if capabilities.routes_copies:  # RabbitMQ
        if properties.reply_to == DIRECT_REPLY:
            raise EncodeError(f"reply_to: {DIRECT_REPLY} needs a consumer on the channel that publishes")
        headers = properties.headers
        if headers:
            for name in COPY_HEADERS:
                if name in headers:
                    _check_copies(name, headers[name])


def _check_copies(name: str, copies: Value) -> None:
    if not isinstance(copies, list) or not all(isinstance(key, str) for key in copies):
        raise EncodeError(f"headers.{name}: {copies!r:.80} is no array of routing keys")
