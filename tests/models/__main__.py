"""Check the models: ``python -m tests.models``, some of them: ``publish lease``, with what was found: ``--traces``."""

from __future__ import annotations

import argparse
import sys

from tests.models.alloy import ModelError, check, models


def main() -> int:
    """Check what the arguments ask for. Return 1 if something is not as a model expects."""
    parser = argparse.ArgumentParser("python -m tests.models")
    known = {path.stem: path for path in models()}
    parser.add_argument("models", nargs="*", choices=[[], *known], help="only these")
    parser.add_argument("--traces", action="store_true", help="print each example and counterexample")
    options = parser.parse_args()
    wrong = 0
    for name in options.models or known:
        try:
            checked = check(known[name])
        except ModelError as error:
            print(error, file=sys.stderr)
            return 1
        for command, trace in checked.found:
            is_right = bool(trace) == command.is_expected
            wrong += not is_right
            word = {"check": "a counterexample", "run": "an example"}[command.kind]
            said = word if trace else f"no {word.partition(' ')[2]}"
            print(f"{name:<8} {command.kind:<5} {command.name:<52} {said:<17} {'as expected' if is_right else 'WRONG'}")
            if trace and (options.traces or not is_right):
                print(*trace, sep="\n")
        print(f"{name}: {len(checked.found)} commands in {checked.seconds:.1f} s\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
