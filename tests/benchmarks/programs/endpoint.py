"""What webhooks are posted to: takes any request, answers 200 with two octets. One process, uvloop; its port is the
first line of the output, and it ends when it is told to.

It counts what is posted; a GET is answered with the count and with the last body.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools
import uvloop

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Endpoint(asyncio.Protocol):
    """One connection."""

    count = 0
    """Bodies that were posted, over all connections."""
    last = b""
    """The newest piece of one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """A piece of a request."""
        Endpoint.last = body

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.parser.get_method() == b"GET":
            found = json.dumps({"count": Endpoint.count, "body": Endpoint.last.decode()}).encode()
            self.transport.write(HEAD.format(len(found)).encode() + found)
            return
        Endpoint.count += 1
        self.transport.write(ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Endpoint, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main(job: dict[str, Any]) -> None:
    """The program."""
    uvloop.run(_serve())
