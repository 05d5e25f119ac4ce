"""What a version cannot carry, and how it travels all the same.

=================  ==================================================================================================
``reserved``       the one header that belongs to the gateway, and its entries that are strings
``homes``          properties: which fit a version, what becomes of the others, how they come back
``reshapes``       header values of types that a version lacks
``forwarding``     a message as a bridge sends it on: headers that brokers act upon, entries, the last hop
``deaths``         what a message tells of its death
``conventions``    how JMS writes one thing in 0-8 and 0-9-1, and how in 0-10
``copies``         a message that is sent once more
``canonical``      one digest for a message wherever it is
``losses``         what is lost all the same, by name
=================  ==================================================================================================
"""

from gateway.fidelity.canonical import digest
from gateway.fidelity.conventions import (
    ID,
    address_of,
    arrival_in_classic,
    arrival_in_native,
    binding_url,
    is_of_jms,
    is_uuid,
    uuid_of,
)
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
    "ID",
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
    "address_of",
    "annotate",
    "annotation",
    "arrival_in_classic",
    "arrival_in_native",
    "binding_url",
    "copy_of",
    "digest",
    "fit",
    "fit_headers",
    "forward",
    "is_bare",
    "is_held",
    "is_of_jms",
    "is_uuid",
    "passes_as_it_is",
    "raw_annotations",
    "restore",
    "strip",
    "uuid_of",
    "x_gzip",
]
