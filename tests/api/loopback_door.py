"""A Unix socket behind a loopback port, for test tools that only know TCP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def door_to(socket: Path) -> Iterator[str]:
    """The base URL at which the socket can be reached meanwhile."""
    opened = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(lambda r, w: _join(socket, r, w), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        opened.set()
        await ending.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert opened.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _join(socket: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    inner_reader, inner_writer = await asyncio.open_unix_connection(str(socket))
    await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
