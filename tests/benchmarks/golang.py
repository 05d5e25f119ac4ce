"""The client in Go: built into a folder of the run's, from the sources and sums in ``go/``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which

from tests.benchmarks.rows import ClientFailed

SOURCES = Path(__file__).with_name("go")
HOW = "one goroutine that publishes and one for the confirms; one basic.ack per message"


def build(folder: Path) -> Path:
    """The program.

    Raises:
        ClientFailed: there is no Go, or it could not build it.
    """
    go = which("go")
    if go is None:
        raise ClientFailed("go is not installed: install Go 1.22 or later (https://go.dev/dl) to have this row")
    program = folder / "bench-go"
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", str(program), "."],
        cwd=SOURCES,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClientFailed(f"go build failed: {' '.join(done.stderr.split())[:300]}")
    return program
