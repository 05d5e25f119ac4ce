"""Known weaknesses of the locked packages: ``python deploy/supply/audit.py``.

pip-audit asks the package index, and says that there is none where the index has no list of them. So a release with
known weaknesses is asked for first (:data:`KNOWN`): where nothing is said of it, nothing was learned, and the exit
status is 3 instead of 0. 1: there are some, besides those of :data:`HARMLESS`; 2: pip-audit failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
UV = Path(sys.executable).with_name("uv")
TOOLS = Path(os.environ.get("GATEWAY_TOOLS") or Path.home() / ".cache" / "gateway-tools")
KNOWN = "starlette==0.36.0"
"""An old release of a package that we use; its parser of forms takes bodies without end (CVE-2024-47874)."""
HARMLESS: Mapping[str, str] = {}
"""Number of a weakness -> why it does not touch the gateway. Each is also told to those who read the SBOM."""
FOUND, FAILED, UNKNOWN = 1, 2, 3


class AuditFailed(Exception):
    """pip-audit could not ask."""


def ask(requirements: Path) -> list[dict[str, Any]]:
    """The packages of a file, each with its ``vulns``.

    Raises:
        AuditFailed: pip-audit is not there, or gave no answer.
    """
    program = TOOLS / "audit" / "bin" / "pip-audit"
    if not program.exists():
        raise AuditFailed(f"there is no {program}: run tests/supply/install.sh audit")
    command = [str(program), "--requirement", str(requirements), "--disable-pip", "--no-deps", "--strict"]
    done = subprocess.run(  # noqa: S603  # our own command
        [*command, "--format", "json", "--progress-spinner", "off"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = done.stderr.strip().rpartition("ERROR:pip_audit._cli:")[2]
        raise AuditFailed(f"pip-audit ended with {done.returncode}: {said[:300]}") from None
    return found


def weaknesses(found: list[dict[str, Any]]) -> list[str]:
    """One line for each that is not harmless."""
    return [
        f"{package['name']} {package['version']}: {each['id']} {' '.join(each.get('aliases', ()))}".rstrip()
        + f", fixed in {', '.join(each.get('fix_versions', ())) or 'no release'}"
        for package in found
        for each in package.get("vulns", ())
        if not {each["id"], *each.get("aliases", ())} & HARMLESS.keys()
    ]


def main() -> int:
    """The command line; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        known, locked = Path(folder) / "known.txt", Path(folder) / "locked.txt"
        known.write_text(f"{KNOWN}\n", encoding="utf-8")
        subprocess.run(  # noqa: S603
            [UV, "export", "--quiet", "--frozen", "--all-extras", "--no-emit-project", "--output-file", str(locked)],
            cwd=ROOT, check=True,
        )  # fmt: skip
        try:
            if not weaknesses(ask(known)):
                sys.stderr.write(
                    f"audit.py: the index says nothing of {KNOWN}, which has known weaknesses: nothing was learned\n"
                )
                return UNKNOWN
            found = ask(locked)
        except AuditFailed as error:
            sys.stderr.write(f"audit.py: {error}\n")
            return FAILED
    bad = weaknesses(found)
    for line in bad:
        sys.stdout.write(f"{line}\n")
    sys.stderr.write(f"audit.py: {len(found)} packages, {len(bad)} weaknesses\n")
    return FOUND if bad else 0


if __name__ == "__main__":
    sys.exit(main())
