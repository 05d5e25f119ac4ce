"""Write the Python of the gateway into one file, for ``spark-submit --py-files``.

``python deploy/spark/package.py gateway.zip``. The file holds ``gateway`` and ``pyspark_gateway`` as they stand beside
this folder, and nothing of what they depend on: that has to be installed where Spark's Python runs, as the extra
``amqp-gateway[spark]`` has it. The same sources make the same file, octet for octet.
"""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("gateway", "pyspark_gateway")
KINDS = frozenset({".py", ".sql", ".txt", ".json", ".typed"})
EPOCH = (2000, 1, 1, 0, 0, 0)


def write(target: Path) -> int:
    """Write it; returns how many files it holds."""
    files = sorted(
        path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in KINDS and "__pycache__" not in path.parts
    )
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for path in files:
            entry = ZipInfo(str(path.relative_to(ROOT)), EPOCH)
            entry.compress_type, entry.external_attr = ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return len(files)


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python deploy/spark/package.py FILE\n")
        return 2
    count = write(Path(arguments[0]))
    sys.stderr.write(f"{arguments[0]}: {count} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
