"""``python -m tests.clients NAME KIND``: the whole suite of a client library on one kind of server, both ways.

What `make test-all` leaves out for want of time runs too. Prints how many tests passed directly and through the front,
and each test that did not. The exit status is 1 where one passed directly alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.clients.both_ways import run_both_ways
from tests.clients.libraries import LIBRARIES
from tests.servers import PRIVATE_KINDS


def main() -> int:
    """The command line; returns the exit status."""
    by_name = {library.name: library for library in LIBRARIES}
    kinds = sorted({kind for library in LIBRARIES for kind in library.kinds})
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("name", choices=by_name, help="whose suite")
    parser.add_argument("kind", choices=kinds, help="on which server")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep there what the suites print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        server = PRIVATE_KINDS[options.kind]().start()
        try:
            found = run_both_ways(by_name[options.name], server, "0-9-1", folder, whole=True)
        finally:
            server.stop()
    for name in sorted(found.direct.keys() | found.through.keys()):
        ways = [name in passed for passed in (found.passed, found.also)]
        if not all(ways):
            said = {(True, False): "directly alone", (False, True): "through the front alone"}
            print(f"{said.get((ways[0], ways[1]), 'neither way'):<24} {name}")
    for reason in found.closes:
        print(f"the broker has ended a connection of the front: {reason[:120]!r}")
    print(f"{options.name} on {options.kind}: {found.counts}")
    return 1 if found.passed - found.also else 0


if __name__ == "__main__":
    sys.exit(main())
