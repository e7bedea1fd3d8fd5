"""A worker that speaks the protocol and has a fault, named on its command line.

A real process on a real socketpair; only the engine is missing. Usage:
``faulty_worker.py FAULT --fd N``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from trimtab.workers.protocol import (
    HEADER,
    Detach,
    Detached,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    Render,
    Rendered,
    Start,
    Stop,
    Tokens,
    decode_to_worker,
    encode,
)


def main(fault: str, descriptor: int) -> int:
    sock = socket.socket(fileno=descriptor)
    if fault == "deaf_to_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault == "dies_at_once":
        sys.stderr.write("no such instruction\n")
        return 3
    while True:
        message = receive(sock)
        if message is None:
            return 0
        status = answer(sock, fault, message)
        if status is not None:
            return status


def answer(sock: socket.socket, fault: str, message: object) -> int | None:
    match message:
        case Load():
            return load(sock, fault)
        case Render(id=number):
            time.sleep(0.3 if fault == "slow" else 0)
            sock.sendall(encode(Rendered(number, [1, 2, 3])))
        case Ping(id=number) if fault != "wedged":
            sock.sendall(encode(Pong(number, 1, 0, 0.0)))
        case Start(stream=stream):
            start(sock, fault, stream)
        case Detach(stream=stream) if fault != "wedged":
            sock.sendall(encode(Detached(stream, 0)))
        case Stop():
            if fault == "deaf_to_sigterm":
                time.sleep(60)
            return 0
    return None


def load(sock: socket.socket, fault: str) -> int | None:
    if fault == "never_ready":
        time.sleep(60)
    if fault == "does_not_load":
        sock.sendall(encode(LoadFailed("load_failed", "model.onnx is truncated")))
        return 1
    if fault == "talks_nonsense":
        sock.sendall(b"\x05\x00\x00\x00\x00hello")
        time.sleep(60)
    if fault == "boasts":
        sock.sendall(HEADER.pack(2**31, 0))
        time.sleep(60)
    ready = encode(Ready(0.1, "generator", "", 1, 2048, 512, [0]))
    for byte in ready:  # in the smallest pieces that there are
        sock.sendall(bytes([byte]))
    if fault in ("dies_when_ready", "dies_with_ready"):
        time.sleep(0.1 if fault == "dies_when_ready" else 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def start(sock: socket.socket, fault: str, stream: int) -> None:
    if fault == "skips_a_token":
        sock.sendall(encode(Tokens(stream, 0, [5], "a")) + encode(Tokens(stream, 2, [6], "b")))
    elif fault == "doubles_a_token":
        sock.sendall(encode(Tokens(stream, 0, [5], "a")) + encode(Tokens(stream, 0, [5], "a")))


def receive(sock: socket.socket) -> object | None:
    head = exactly(sock, HEADER.size)
    if head is None:
        return None
    length, _ = HEADER.unpack(head)
    body = exactly(sock, length)
    return None if body is None else decode_to_worker(body)


def exactly(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[3])))
