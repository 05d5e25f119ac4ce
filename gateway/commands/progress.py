"""How things that take their time look in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.terminal import ERASE, Progress, bar, printable

__all__ = ["ERASE", "Progress", "bar", "replay_line"]


def replay_line(job: Mapping[str, Any]) -> str:
    """A replay in one line."""
    refused = sum(job["refused"].values())
    of = f" of {job['total']:,}" if job["total"] is not None else ""
    parts = [bar(job["found"], job["total"]), printable(job["id"]), job["state"], f"{job['found']:,}{of}"]
    parts += [
        f"{name} {count:,}"
        for name, count in (
            ("sent", job["sent"]), ("skipped", job["skipped"]), ("refused", refused), ("resent", job["resent"])
        )
        if count or name == "sent"
    ]  # fmt: skip
    if job["reason"]:
        parts.append(printable(job["reason"]))
    return "  ".join(part for part in parts if part)
