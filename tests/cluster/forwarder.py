"""Leads connections to the API server into the namespaces it lives in.

Runs inside with a listening socket that was opened outside:
`python forwarder.py SOCKET_FD HOST PORT`.
"""

from __future__ import annotations

import asyncio
import socket
import sys

_CHUNK = 256 * 1024


async def main() -> None:
    """Serves for ever."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    host, port = sys.argv[2], int(sys.argv[3])

    async def serve(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        try:
            server_in, server_out = await asyncio.open_connection(host, port)
        except OSError:  # the API server is not there yet, or not any more
            client_out.close()
            return
        try:
            await asyncio.gather(_pump(client_in, server_out), _pump(server_in, client_out))
        except OSError:  # either side broke off
            return
        finally:
            server_out.close()
            client_out.close()

    server = await asyncio.start_server(serve, sock=listener)
    async with server:
        await server.serve_forever()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies until the source ends, then tells the target; the other direction goes on."""
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


if __name__ == "__main__":
    asyncio.run(main())
