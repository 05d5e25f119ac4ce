"""Telling others what happened, without suffering from what they do about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from gateway.observing.telemetry import log

_T = TypeVar("_T")


def notify(listeners: Iterable[Callable[[_T], None]], value: _T) -> None:
    """Call each. One that fails is logged: it must not keep the news from the others, nor end the link on whose
    behalf it was called."""
    for listener in list(listeners):
        try:
            listener(value)
        except Exception as error:
            log("listener.failed", logging.ERROR, exc_info=error, listener=repr(listener))
