"""Connections say which test has made them."""

from __future__ import annotations

import asyncio


async def test_a_connection_names_its_test() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
    shown = repr(transport)
    transport.close()
    server.close()
    await server.wait_closed()
    assert f"to ('127.0.0.1', {port}) for Protocol, made in {__name__.replace('.', '/')}.py::" in shown
    assert test_a_connection_names_its_test.__name__ in shown
