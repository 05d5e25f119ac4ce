"""What a version cannot carry, and how it travels all the same.

=================  ==================================================================================================
``reserved``       the one header that belongs to the gateway, and its entries that are strings
``homes``          properties: which fit a version, what becomes of the others, how they come back
``reshapes``       header values of types that a version lacks
``forwarding``     a message as a bridge sends it on: headers that brokers act upon, entries, the last hop
``deaths``         what a message tells of its death
``copies``         a message that is sent once more
``canonical``      one digest for a message wherever it is
``losses``         what is lost all the same, by name
=================  ==================================================================================================
"""

from gateway.fidelity.canonical import digest
from gateway.fidelity.copies import copy_of
from gateway.fidelity.forwarding import HELD, HELD_PREFIX, forward, is_bare, is_held, strip
from gateway.fidelity.homes import GZIP, NO_HOME, Home, Native, fit, restore, x_gzip
from gateway.fidelity.losses import LOSSES, Loss, Lost
from gateway.fidelity.reserved import (
    RESERVED,
    RESERVED_OCTETS,
    annotate,
    annotation,
    passes_as_it_is,
    raw_annotations,
)
from gateway.fidelity.reshapes import ITEM, KEY, RESHAPES, fit_headers

__all__ = [
    "GZIP",
    "HELD",
    "HELD_PREFIX",
    "ITEM",
    "KEY",
    "LOSSES",
    "NO_HOME",
    "RESERVED",
    "RESERVED_OCTETS",
    "RESHAPES",
    "Home",
    "Loss",
    "Lost",
    "Native",
    "annotate",
    "annotation",
    "copy_of",
    "digest",
    "fit",
    "fit_headers",
    "forward",
    "is_bare",
    "is_held",
    "passes_as_it_is",
    "raw_annotations",
    "restore",
    "strip",
    "x_gzip",
]
