"""``python -m tests.fuzz.guided``: let coverage choose the octets (atheris, libFuzzer's engine for Python).

The first three octets of an input choose version, role and state, the rest is what the session hears; the oracle is
that of all cases. Needs the dependency group ``fuzz``, for which not every Python has a wheel.

    python -m tests.fuzz.guided --seconds 300 --corpus FOLDER
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

INSTRUMENTED = (
    "gateway.wire", "gateway.classic", "gateway.v08", "gateway.v091", "gateway.v010", "gateway.amqp.sasl",
    "gateway.fidelity",
)  # fmt: skip
"""Whose branches are counted."""
MISSING = """\
make fuzz-guided needs atheris, which has wheels for some versions of Python only (this is {version}).
Install it with: uv sync --group fuzz
`make fuzz` needs nothing more, and throws the same octets without looking at coverage.\
"""


def seeds(folder: Path) -> None:
    """Conversations of real brokers and ours, in each state, to begin with."""
    from random import Random

    from tests.fuzz.generators import GENERATORS, conversations
    from tests.fuzz.states import STATES
    from tests.fuzz.targets import ROLES, VERSIONS

    random = Random("seeds")
    for version_index, version in enumerate(VERSIONS):
        for role_index, role in enumerate(ROLES):
            for number, octets in enumerate(conversations(version, role)):
                (folder / f"said-{version_index}{role_index}-{number}").write_bytes(
                    bytes((version_index, role_index, 0)) + octets[:4_000]
                )
            for state_index, state in enumerate(STATES):
                octets = GENERATORS["grammar"](random, version, role, state)[:2_000]
                name = f"grammar-{version_index}{role_index}-{state_index}"
                (folder / name).write_bytes(bytes((version_index, role_index, state_index)) + octets)


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="how long (300)")
    parser.add_argument("--corpus", type=Path, default=None, help="folder of inputs that found something new")
    options = parser.parse_args()
    if atheris is None:
        print(MISSING.format(version=sys.version.split()[0]), file=sys.stderr)
        return 1
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        import gateway.versions  # noqa: F401  # everything below is behind it
    from tests.fuzz import oracle
    from tests.fuzz.oracle import Broken, Case
    from tests.fuzz.states import STATES
    from tests.fuzz.targets import ROLES, VERSIONS

    folder = Path(tempfile.gettempdir()) / "gateway-fuzz-guided"
    corpus = options.corpus or folder / "corpus"
    folder.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(parents=True, exist_ok=True)
    seeds(corpus)
    states = tuple(STATES)

    def one(data: bytes) -> None:
        if len(data) < 3:
            return
        version, role = VERSIONS[data[0] % len(VERSIONS)], ROLES[data[1] % len(ROLES)]
        case = Case("session", version, role, states[data[2] % len(states)], (data[3:],))
        try:
            oracle.run(case)
        except Broken:
            path = folder / f"broken-{os.getpid()}-{abs(hash(data))}.json"
            case.write(path)
            print(f"\nrepeat it: python -m tests.fuzz --case {path}", flush=True)
            raise

    print(f"inputs that found something new: {corpus}", flush=True)
    engine = [sys.argv[0], str(corpus), f"-max_total_time={options.seconds}", "-max_len=8000", "-timeout=10"]
    engine += ["-rss_limit_mb=2000", f"-artifact_prefix={folder}/"]
    atheris.Setup(engine, one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
