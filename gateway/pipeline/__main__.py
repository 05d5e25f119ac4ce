"""``python -m gateway.pipeline``, and what ``spark-submit`` runs: the verbs of ``gateway pipeline``.

``spark-submit --py-files gateway.zip …/gateway/pipeline/__main__.py run archive`` runs this file by its path. Then its
folder, with our ``settings`` and ``schema`` and ``session``, would be the first place where Python looks for anybody's
modules; it is taken off.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

if not __package__:
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if str(Path(path or ".").resolve()) != here]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a verb, and exit with its status."""
    import click

    from gateway.errors import GatewayError
    from gateway.exits import exit_status
    from gateway.pipeline.cli import pipeline

    try:
        pipeline.main(args=arguments, prog_name="python -m gateway.pipeline")
    except GatewayError as error:
        click.echo(f"gateway: {error}", err=True)
        for more in getattr(error, "__notes__", ()):
            click.echo(f"  {more}", err=True)
        raise SystemExit(exit_status(type(error))) from None
    raise SystemExit(0)


if __name__ == "__main__":
    main()
