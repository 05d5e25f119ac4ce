"""What is known of CloudEvents 1.0 on both ways: to us (:mod:`gateway.api.messages.cloudevents`) and from us
(:mod:`gateway.webhooks.attempts.forms`).

An event in binary mode is an AMQP message with a header ``cloudEvents_NAME`` for each attribute; one in structured mode
is the body of a message with the content type :data:`STRUCTURED`."""

from __future__ import annotations

from typing import Final

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
PREFIX: Final = "cloudEvents_"
REQUIRED: Final = ("id", "source", "specversion", "type")
"""Attributes without which there is no event."""
