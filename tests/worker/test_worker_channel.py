from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from trimtab.errors import WorkerError
from trimtab.worker.channel import Channel, ChannelClosedError
from trimtab.workers.protocol import HEADER, Cancel, Ping, Start, Stop, decode_to_worker, encode

Pair = tuple[Channel, Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    left, right = Channel(ours), Channel(theirs)
    yield left, right, ours
    left.close()
    right.close()


def test_frames_arrive_whole_and_in_order(pair: Pair) -> None:
    left, right, _ = pair
    left.put(Cancel(stream=1))
    left.put(Ping(id=2))
    left.flush()
    messages = [decode_to_worker(body) for body, _ in right.receive(1)]

    assert messages == [Cancel(stream=1), Ping(id=2)]


def test_a_frame_that_comes_byte_by_byte_is_put_together(pair: Pair) -> None:
    _, right, raw = pair
    for byte in encode(Ping(id=3)):
        assert right.receive(0) == []
        raw.send(bytes((byte,)))

    assert decode_to_worker(right.receive(0)[0][0]) == Ping(id=3)


def test_frames_over_the_most_stay_for_the_next_call(pair: Pair) -> None:
    left, right, _ = pair
    for number in range(3):
        left.put(Ping(id=number))
    left.flush()

    assert len(right.receive(1, most=2)) == 2
    assert decode_to_worker(right.receive(0)[0][0]) == Ping(id=2)


def test_descriptors_come_with_the_frame_that_names_them(pair: Pair) -> None:
    left, right, _ = pair
    reading, writing = os.pipe()
    left.put(Ping(id=1))
    left.send(Ping(id=2), [writing])
    left.send(Ping(id=3))
    os.close(writing)
    frames = right.receive(1)
    while len(frames) < 3:
        frames += right.receive(1)
    counts = [len(descriptors) for _, descriptors in frames]
    received = frames[1][1][0]
    os.write(received, b"hello")

    assert counts == [0, 1, 0]
    assert not os.get_inheritable(received)
    assert os.read(reading, 5) == b"hello"
    os.close(received)
    os.close(reading)


def test_a_frame_that_was_taken_in_before_is_not_waited_for(pair: Pair) -> None:
    left, right, _ = pair
    left.send(Ping(id=3))
    right.take_in()
    begun_s = time.monotonic()

    assert right.readable(5)
    assert time.monotonic() - begun_s < 4
    assert len(right.receive(0)) == 1
    assert not right.readable(0)


def test_a_frame_whose_descriptor_was_lost_breaks_the_channel_for_whoever_looks_next(
    pair: Pair,
) -> None:
    _, right, raw = pair
    descriptor = os.memfd_create("segment")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(descriptor)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        socket.send_fds(raw, [encode(Start(stream=2, prompt=[5], segment=True), 1)], [descriptor])
        with pytest.raises(WorkerError, match="descriptors were lost"):
            right.take_in()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(descriptor)
    raw.send(encode(Ping(id=3)))

    with pytest.raises(WorkerError, match="descriptors were lost"):
        right.receive(0)


def test_what_came_before_the_end_is_handed_out_first(pair: Pair) -> None:
    left, right, _ = pair
    left.send(Stop())
    left.close()

    assert [decode_to_worker(body) for body, _ in right.receive(1)] == [Stop()]
    with pytest.raises(ChannelClosedError):
        right.receive(1)


def test_a_channel_that_nobody_reads_any_more_says_so(pair: Pair) -> None:
    left, right, _ = pair
    right.close()

    with pytest.raises(ChannelClosedError):
        left.send(Stop())


def test_a_frame_of_absurd_length_breaks_the_channel(pair: Pair) -> None:
    _, right, raw = pair
    raw.send(HEADER.pack(2**31, 0))

    with pytest.raises(WorkerError, match="2147483648 bytes"):
        right.receive(1)


def test_a_frame_without_the_descriptors_that_it_names_breaks_the_channel(pair: Pair) -> None:
    _, right, raw = pair
    body = encode(Stop())[HEADER.size :]
    raw.send(HEADER.pack(len(body), 2) + body)

    with pytest.raises(WorkerError, match="2 descriptors"):
        right.receive(1)


def test_descriptors_that_nobody_claimed_are_closed_with_the_channel(pair: Pair) -> None:
    _, right, raw = pair
    reading, writing = os.pipe()
    socket.send_fds(raw, [encode(Stop())], [writing])
    os.close(writing)
    right.receive(1)
    right.close()

    assert os.read(reading, 1) == b""
    os.close(reading)
