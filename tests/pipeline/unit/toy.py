"""A job that does what its options say, for the commands."""

from __future__ import annotations

import gateway.errors
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.reports import Number, Numbers

SEEN: list[Context] = []
"""The contexts it ran in."""


class Toy:
    """The job."""

    name = "toy"
    help = "Play. It does what its options say."
    options = (
        Option("since", "from then on", "time"),
        Option("rows", "how many", "whole", default=3, least=1),
        Option("rate", "how fast", "number", default=0.0, identity=False),
        Option("how", "in which way", "choice", default="well", choices=("well", "badly")),
        Option("queue", "a queue; may be repeated", many=True, metavar="QUEUE"),
        Option("loud_too", "whether it makes noise", "flag"),
        Option("where", "which ones", required=True),
    )

    def run(self, context: Context) -> Outcome:
        """Play."""
        SEEN.append(context)
        if context.options["how"] == "badly":
            raise gateway.errors.SourceGone("rows 1 to 9 are gone")
        rows = context.options["rows"]
        context.progress(rows, rows)
        report = Numbers("Played", [Number("rows", rows)])
        return Outcome(rows=rows, detail={"how": "well"}, reports=(report,), exit=7 if rows == 13 else 0)
