"""Write the facts of the classic definitions anew."""

from __future__ import annotations

import sys

from tests.definitions.classic import SPOKEN
from tests.definitions.definitions import VARIABLE, facts_path, read, source, written


def main() -> int:
    """Write those whose definition is found."""
    paths = {file: path for file in SPOKEN if (path := source(file)) is not None}
    for file, path in paths.items():
        facts_path(file).write_text(written(read(path)))
        print(f"wrote {facts_path(file)}")
    if len(paths) < len(SPOKEN):
        print(f"not found: {', '.join(SPOKEN.keys() - paths.keys())}; {VARIABLE} says where to look")
    return 0 if len(paths) == len(SPOKEN) else 1


if __name__ == "__main__":
    sys.exit(main())
