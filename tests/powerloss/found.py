"""What a part found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Found:
    """What came of some points."""

    points: Counter[str] = field(default_factory=Counter)
    """How many points there were, by what was done or what came of it."""
    problems: list[str] = field(default_factory=list)
    """What must not be; empty: all is well."""
