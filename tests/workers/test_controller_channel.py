"""The controller's end of a worker's socketpair."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from trimtab.errors import WorkerError
from trimtab.workers.channel import Channel
from trimtab.workers.protocol import FromWorker, Start, Tokens, encode


@dataclass
class End:
    """One end, what it was told, and the other end as it is."""

    raw: socket.socket
    firsts: list[int] = field(default_factory=list)
    fail_at: int | None = None

    def told(self, message: FromWorker) -> None:
        assert isinstance(message, Tokens)
        self.firsts.append(message.first)
        if message.first == self.fail_at:
            self.fail_at = None
            raise OSError(24, "Too many open files")


@pytest.fixture
async def end() -> AsyncIterator[End]:
    ours, theirs = socket.socketpair()
    made = End(theirs)
    channel = Channel(ours, made.told, lambda _: None)
    yield made
    channel.close()
    theirs.close()


async def test_a_handler_that_fails_has_no_frame_handed_out_twice(end: End) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    end.fail_at = 1
    end.raw.sendall(b"".join(encode(Tokens(1, first, [first], "")) for first in range(3)))
    await asyncio.sleep(0.05)
    end.raw.sendall(encode(Tokens(1, 3, [3], "")))
    await asyncio.sleep(0.05)

    assert end.firsts == [0, 1, 2, 3]
    assert len(told) == 1


async def test_a_process_without_descriptors_says_so_and_keeps_none() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, lambda _: None, lambda _: None)
    descriptor = os.memfd_create("segment")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(descriptor)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))  # for one of the two
        with pytest.raises(WorkerError, match="a descriptor can't be sent"):
            channel.send(Start(stream=1, prompt=[1], segment=True), [descriptor, descriptor])
        again = os.dup(descriptor)  # the one that there was is free again
        os.close(again)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(descriptor)
        channel.close()
        theirs.close()

    assert again == free
