"""``python -m tests.contract``: the API beside its own document, for as long as one likes; prints what it found."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.contract.run import PHASES, answered, furnish, gateway, operations, receiving, schemathesis, unserved


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description="Ask the API what its document says.")
    parser.add_argument("--examples", type=int, default=50, help="requests of each operation and phase (50)")
    parser.add_argument("--seconds", type=int, default=0, help="repeat what is invented for so long (0: once)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="from which they are made (the time)")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"some of {','.join(PHASES)}")
    parser.add_argument("more", nargs="*", help="further arguments of schemathesis, behind --")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gateway-contract-") as name:
        folder = Path(name)
        with receiving() as url, gateway(folder, url) as process:
            furnish(process.port, url)
            report = schemathesis(
                process.port, folder, phases=options.phases.split(","), examples=options.examples,
                seconds=options.seconds, seed=options.seed, more=options.more,
            )  # fmt: skip
            found, left, all_there_are = answered(process), unserved(process), len(operations(process))
            log = process.log()
    print(report.said)
    for operation, statuses in sorted(found.items()):
        print(f"{operation:<28} " + "  ".join(f"{status}: {count}" for status, count in sorted(statuses.items())))
    requests = sum(sum(statuses.values()) for statuses in found.values())
    failed = log.count('"http.failed"')
    print(f"\n{requests} requests, {all_there_are - len(left)} of {all_there_are} operations, {failed} crashes")
    for line in (*(f"not asked: {operation}" for operation in sorted(left)), *report.sightings):
        print(line)
    return 1 if report.status or left or failed or report.sightings else 0


if __name__ == "__main__":
    sys.exit(main())
