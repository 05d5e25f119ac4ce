"""Folders of runs: there while the run lives, swept away when it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gateway.pipeline.scratch import PREFIX, Scratch, sweep


def test_it_is_there_until_it_is_removed(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "new"))
    (scratch.path / "spill").write_bytes(b"x")
    scratch.remove()
    scratch.remove()
    assert not scratch.path.exists()


def test_one_that_lives_is_left_alone(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    assert sweep(tmp_path) == []
    assert scratch.path.exists()
    scratch.remove()


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from gateway.pipeline.scratch import Scratch\n"
        "scratch = Scratch(sys.argv[1])\n"
        "print(scratch.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.exists()
    scratch = Scratch(str(tmp_path))
    assert not left.exists()
    scratch.remove()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    for name in ("other", PREFIX + "being-made"):
        (tmp_path / name).mkdir()
    (tmp_path / (PREFIX + "file")).write_bytes(b"")
    assert sweep(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3
