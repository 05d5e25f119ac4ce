"""``gateway serve``: run the gateway until a signal stops it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gateway.commands.options import config_option, data_dir_option

if TYPE_CHECKING:
    from gateway.config import Config

FREE_PORTS = "--http-port 0 --ops-port 0 --amqp-port 0"


@click.command(short_help="Run the gateway.")
@config_option
@click.option(
    "--role",
    type=click.Choice(("all", "api", "worker")),
    envvar="GATEWAY_ROLE",
    show_envvar=True,
    help="What this process does: api serves HTTP, worker runs bridges, pushes, taps, replays.  [default: all]",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    envvar="GATEWAY_HTTP_PORT",
    show_envvar=True,
    metavar="PORT",
    help="Port of the HTTP API; 0 takes any free one.  [default: 8080]",
)
@click.option(
    "--ops-port",
    type=click.IntRange(0, 65535),
    envvar="GATEWAY_OPS_PORT",
    show_envvar=True,
    metavar="PORT",
    help="Port of /startupz, /livez, /readyz and /metrics; 0 takes any free one.  [default: 8081]",
)
@click.option(
    "--amqp-port",
    type=click.IntRange(0, 65535),
    envvar="GATEWAY_AMQP_PORT",
    show_envvar=True,
    metavar="PORT",
    help="Port of the embedded broker, all versions; 0 takes any free one.  [default: 5670]",
)
@data_dir_option
@click.option(
    "--ports-file",
    metavar="FILE",
    help='Write the ports to FILE once it is ready, as {"http": …, "ops": …, "amqp": …}.',
)
@click.option(
    "--try-out",
    is_flag=True,
    help="Without --config: listen on all addresses, with a key and a password that are made now and printed.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    config: str | None,
    role: str | None,
    http_port: int | None,
    ops_port: int | None,
    amqp_port: int | None,
    data_dir: str | None,
    ports_file: str | None,
    try_out: bool,
) -> None:
    """Run the gateway until SIGTERM or SIGINT; SIGHUP reads the configuration file again.

    Without --config it is a development gateway on loopback: it starts the embedded broker and offers it once in
    each version, as the brokers local-0-8, local-0-9-1, local-0-10 and so on.

    With --try-out that gateway listens on all addresses, for a container. Callers need the key that it prints, AMQP
    clients the password. Both are new with each start.

    \b
    Examples:
      gateway serve
      gateway serve --config gateway.toml
      gateway serve --config gateway.toml --role worker
      gateway serve --http-port 0 --ops-port 0 --amqp-port 0 --ports-file ports.json
    """
    from functools import partial

    from gateway.config import load
    from gateway.runtime.ids import ids

    overrides = {
        "role": role,
        "http.port": http_port,
        "ops.port": ops_port,
        "embedded.port": amqp_port,
        "data_dir": data_dir,
    }
    read = partial(load, config, overrides=overrides)
    settings = read()
    # Only now: a wrong setting is told before the whole service is imported.
    from gateway import app

    if try_out:
        if config is not None:
            raise click.UsageError("--try-out is for a gateway without --config.")
        key, password = ids.random_bytes(24).hex(), ids.random_bytes(12).hex()
        settings = app.with_try_out(settings, key, password)
        with _holders_named(settings):
            ctx.exit(app.serve(settings, ports_file, lambda line: click.echo(_first_steps(line, key, password))))
    if config is None:
        settings = app.with_development(settings)
        with _holders_named(settings):
            ctx.exit(app.serve(settings, ports_file, click.echo))
    with _holders_named(settings):
        ctx.exit(app.serve(settings, ports_file, click.echo, read=read))


@contextmanager
def _holders_named(settings: Config) -> Iterator[None]:
    """Name the process that has a port which this one cannot have, where the system tells."""
    from gateway.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        from gateway.commands.doctor.listeners import holder_of, ports

        for port in ports(settings):
            if str(error).startswith(f"{port.setting} {port.port}") and (holder := holder_of(port.port)):
                error.add_note(f"{holder} has port {port.port}. Stop it, or take any free ports: {FREE_PORTS}")
        raise


def _first_steps(ready: str, key: str, password: str) -> str:
    """What to do with a gateway that is tried out."""
    return (
        f"{ready}\n"
        f"API key: {key}\n"
        f"AMQP user try-out, password: {password}\n"
        "Publish a first message, through the port that you gave it outside:\n"
        f"  curl -H 'Authorization: Bearer {key}' -X PUT http://127.0.0.1:8080/v1/brokers/local-0-9-1/queues/hello"
        " -H 'Content-Type: application/json' -d '{}'\n"
        f"  curl -H 'Authorization: Bearer {key}' -X POST "
        "http://127.0.0.1:8080/v1/brokers/local-0-9-1/exchanges/amq.default:publish"
        """ -H 'Content-Type: application/json' -d '{"routing_key": "hello", "payload": "hi"}'"""
    )
