"""``python -m tests.benchmarks.programs NAME JOB``: see the package."""

from __future__ import annotations

import importlib
import json
import sys

from tests.benchmarks.programs import PROGRAMS


def main() -> None:
    """Run the program and print what it answers."""
    name, job = sys.argv[1:]
    if name not in PROGRAMS:
        sys.exit(f"there is no program {name!r}; there are {', '.join(PROGRAMS)}")
    module = importlib.import_module(f"tests.benchmarks.programs.{name}")
    print(json.dumps(module.main(json.loads(job))))


if __name__ == "__main__":
    main()
