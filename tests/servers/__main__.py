"""``python -m tests.servers up|down --file FILE``: servers that several test processes share."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers import KINDS, Server, ServerUnavailable
from tests.servers.process import ProcessId, State, identify


def up(path: Path, kinds: list[str], owner: ProcessId | None) -> None:
    """Start one of each kind and write down how to reach them. All or none. What the environment names is not started:
    each test process finds it there."""
    servers = [KINDS[kind]() for kind in kinds if KINDS[kind].elsewhere() is None]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, servers))
    except BaseException:
        for server in servers:
            server.stop()
        raise
    path.write_text(json.dumps({server.kind: server.disown(owner).to_json() for server in servers}, indent=1))


def down(path: Path) -> None:
    """End them and remove the file; says what they took of a processor."""
    took = []
    for kind, state in json.loads(path.read_text()).items():
        server = KINDS[kind](State.from_json(state)).adopt()
        took.append(f"{kind} {server.cpu_seconds:.0f} s")
        server.stop()
    path.unlink()
    print("took of a processor: " + ", ".join(took))


def main() -> int:
    """The command; 0, or 1 with one sentence on the error output."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("command", choices=("up", "down"))
    parser.add_argument("--file", type=Path, required=True, help="where the running servers are written down")
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), default=sorted(KINDS), help="up: which ones")
    parser.add_argument(
        "--owner",
        type=int,
        metavar="PID",
        help="up: a process that they do not outlive for long: the next start of a server ends them if it has ended",
    )
    options = parser.parse_args()
    try:
        if options.command == "up":
            up(options.file, options.only, identify(options.owner) if options.owner else None)
        else:
            down(options.file)
    except (ServerUnavailable, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
