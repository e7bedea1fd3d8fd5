"""The worker as a process: how it loads, and every way in which it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from worker_peer import DEADLINE_S, TINY, WorkerProcess

from trimtab.workers.protocol import HEADER, LoadFailed, Pace, Ping, Pong, Start, Tokens

NewWorker = Callable[[], WorkerProcess]

PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
keep = ours.dup()
child = subprocess.Popen(
    [sys.executable, "-m", "trimtab.worker", "--fd", str(theirs.fileno())],
    pass_fds=(theirs.fileno(), keep.fileno()),
)
print(child.pid, flush=True)
time.sleep(60)
"""


def gone(pid: int) -> bool:
    """Wait for the end of a process that isn't our child."""
    end_s = monotonic() + DEADLINE_S
    while monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        sleep(0.01)
    return False


def wait_for_name(pid: int, name: str) -> None:
    end_s = monotonic() + DEADLINE_S
    while Path(f"/proc/{pid}/comm").read_text().strip() != name:
        assert monotonic() < end_s
        sleep(0.01)


def busy(worker: WorkerProcess) -> None:
    """Have it decode a long answer."""
    worker.load()
    worker.send(Start(stream=1, prompt=[5, 6, 7], max_tokens=2000, ignore_eos=True))
    worker.send(Pace(ratio=0.5))
    worker.until(lambda message: isinstance(message, Tokens))


def test_the_worker_dies_with_its_parent_even_if_its_channel_stays_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        wait_for_name(worker, "trimtab-worker")
        parent.kill()

    assert gone(worker)


def test_the_end_of_the_channel_is_the_end_of_the_worker(new_worker: NewWorker) -> None:
    worker = new_worker()
    busy(worker)
    worker.channel.close()

    assert worker.process.wait(DEADLINE_S) == 0
    assert worker.errors() == ""


def test_the_end_of_the_channel_before_the_load_is_the_end_too(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.channel.close()

    assert worker.process.wait(DEADLINE_S) == 0


def test_a_worker_that_is_not_needed_after_all_ends_without_a_word(new_worker: NewWorker) -> None:
    worker = new_worker()

    assert worker.stop() == 0
    assert worker.errors() == ""


def test_a_load_counts_from_the_start_of_the_process_but_not_what_it_waits(
    new_worker: NewWorker,
) -> None:
    worker = new_worker()
    begun_s = monotonic()
    wait_for_name(worker.process.pid, "trimtab-worker")
    sleep(1.0)
    ready = worker.load()
    whole_s = monotonic() - begun_s

    assert 0.05 < ready.load_s < whole_s - 0.3


def without_a_tokenizer(folder: Path) -> Path:
    """A variant whose tokenizer the engine refuses, although its vocabulary can be read."""
    shutil.copytree(TINY / "fp32", folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "NoSuchTokenizer"}')
    return folder


def test_a_variant_whose_tokenizer_the_engine_refuses_does_not_load(
    new_worker: NewWorker, tmp_path: Path
) -> None:
    worker = new_worker()
    worker.ask_to_load(folder=str(without_a_tokenizer(tmp_path / "v")), decoder="kv")
    answer = worker.next()

    assert isinstance(answer, LoadFailed)
    assert "refuses the tokenizer" in answer.message


def test_held_streams_go_on_before_the_tokenizer_is_missed(
    new_worker: NewWorker, tmp_path: Path
) -> None:
    worker = new_worker()
    worker.load(folder=str(without_a_tokenizer(tmp_path / "v")), decoder="kv", held=True)
    answer = worker.run(Start(stream=1, prompt=[5, 6, 7], max_tokens=30, ignore_eos=True))

    assert len(answer.tokens) == 30
    assert worker.process.wait(DEADLINE_S) == 1
    assert "refuses the tokenizer" in worker.errors()


def test_held_streams_cost_new_requests_nothing_but_a_moment(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load(decoder="kv", held=True)

    assert worker.prompt("hello")


def test_a_worker_whose_parent_is_gone_at_its_start_ends_at_once(tmp_path: Path) -> None:
    # The shell that starts it is not the process that made the socketpair.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = f"{sys.executable} -m trimtab.worker --fd {theirs.fileno()} & wait"
        ended = subprocess.run(
            ["sh", "-c", command], pass_fds=(theirs.fileno(),), timeout=DEADLINE_S, check=False
        )

    assert ended.returncode == 0


def test_sigterm_ends_it_cleanly_in_the_middle_of_a_stream(new_worker: NewWorker) -> None:
    worker = new_worker()
    busy(worker)
    worker.process.terminate()

    assert worker.process.wait(DEADLINE_S) == 0
    worker.drain()
    assert worker.errors() == ""


def test_sigterm_ends_an_idle_worker(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load()
    worker.process.terminate()

    assert worker.process.wait(DEADLINE_S) == 0


def test_ctrl_c_is_left_to_the_controller(new_worker: NewWorker) -> None:
    worker = new_worker()
    busy(worker)
    worker.process.send_signal(signal.SIGINT)
    worker.send(Ping(id=1))
    worker.until(lambda message: isinstance(message, Pong))

    assert worker.stop() == 0


def test_stop_ends_it_while_streams_run(new_worker: NewWorker) -> None:
    worker = new_worker()
    busy(worker)

    assert worker.stop() == 0


def test_it_has_a_name(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load()

    comm = Path(f"/proc/{worker.process.pid}/comm")
    assert comm.read_text().strip() == "trimtab-worker"


def test_the_engine_leaves_no_record_of_its_use(
    monkeypatch: pytest.MonkeyPatch, new_worker: NewWorker, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    worker = new_worker()
    worker.load()
    worker.stop()

    assert list(tmp_path.rglob("*")) == []


def test_an_idle_worker_uses_no_processor(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load()
    worker.run(Start(stream=1, prompt=[5, 6, 7], max_tokens=20, ignore_eos=True))
    sleep(0.2)
    stat = Path(f"/proc/{worker.process.pid}/stat")

    def ticks() -> int:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    sleep(0.5)

    assert ticks() - before <= 1


def test_a_frame_of_absurd_length_ends_it_with_a_status_and_one_line(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load()
    worker.raw.sendall(HEADER.pack(2**31, 0))

    assert worker.process.wait(DEADLINE_S) == 3
    assert worker.errors().splitlines() == [
        "a frame says that it has 2147483648 bytes; the most is 67108864"
    ]


def test_a_first_message_that_is_not_load_is_refused(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.send(Ping(id=1))

    assert worker.process.wait(DEADLINE_S) == 3
    assert "must be load, not ping" in worker.errors()


def copy_of_tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "variant"
    shutil.copytree(TINY / "fp32", folder)
    return folder


def refused(worker: WorkerProcess, folder: Path, **fields: object) -> LoadFailed:
    worker.ask_to_load(folder=str(folder), **fields)
    answer = worker.next()
    assert isinstance(answer, LoadFailed), answer
    assert worker.process.wait(DEADLINE_S) == 1
    assert "Traceback" not in worker.errors()
    return answer


def test_a_missing_folder_is_named(new_worker: NewWorker, tmp_path: Path) -> None:
    answer = refused(new_worker(), tmp_path / "nowhere")

    assert answer.code == "model_missing"
    assert str(tmp_path / "nowhere/genai_config.json") in answer.message


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("genai_config.json", b"{", "genai_config.json"),
        ("genai_config.json", b'{"model": {"type": "llama"}}', "vocab_size"),
        ("tokenizer.json", b"[]", "tokenizer.json"),
        ("tokenizer.json", None, "tokenizer.json"),
        ("model.onnx", None, "model.onnx is missing"),
        ("model.onnx", b"not a graph", "the engine refuses the variant"),
        ("model.onnx.data", b"short", "the engine refuses the variant"),
    ],
)
def test_a_damaged_file_is_named(
    new_worker: NewWorker, tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    folder = copy_of_tiny(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)

    assert says in refused(new_worker(), folder).message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"threads": 0}, "threads: 0"),
        ({"context": 0}, "context: 0"),
        ({"decoder": "magic"}, "decoder: 'magic'"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(
    new_worker: NewWorker, fields: dict[str, object], says: str
) -> None:
    answer = refused(new_worker(), TINY / "fp32", **fields)

    assert answer.code == "invalid_request"
    assert says in answer.message


def test_descriptors_that_nobody_asked_for_do_not_pile_up(new_worker: NewWorker) -> None:
    worker = new_worker()
    worker.load()
    folder = Path(f"/proc/{worker.process.pid}/fd")
    before = len(list(folder.iterdir()))
    memory = os.memfd_create("segment", os.MFD_CLOEXEC)
    for number in range(20):
        worker.send(Ping(id=number), [memory])
        worker.send(
            Start(stream=number, prompt=[5, 6], max_tokens=3, segment=True), [memory, memory]
        )
        worker.end_of(number)
    worker.send(Start(stream=1, prompt=[], segment=True), [memory])
    worker.end_of(1)
    os.close(memory)

    assert len(list(folder.iterdir())) == before
