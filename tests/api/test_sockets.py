"""Sockets: safe before anyone connects, taken over only when nobody answers, removed at the end."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.api.sockets import activated, listen_unix, passed_by_systemd
from trimtab.errors import ConfigError, SocketTakenError


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_folder_and_socket_have_their_permissions_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "run" / "inference.sock"
    listener = listen_unix(path, 0o660)

    assert permissions(path.parent) == 0o700
    assert permissions(path) == 0o660
    listener.close()


def test_the_group_gets_socket_and_folder(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    path = tmp_path / "run" / "inference.sock"
    listener = listen_unix(path, 0o660, group)

    assert path.lstat().st_gid == os.getgid()
    assert permissions(path.parent) == 0o750
    listener.close()


def test_an_unknown_group_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        listen_unix(tmp_path / "a.sock", 0o660, "no-such-group")

    assert "no-such-group" in caught.value.message
    assert "groupadd" in caught.value.hint


def test_a_stale_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    inode = path.lstat().st_ino

    listener = listen_unix(path, 0o600)

    assert path.lstat().st_ino != inode or permissions(path) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listener.close()


def test_a_socket_with_a_living_daemon_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    first = listen_unix(path, 0o600)
    inode = path.lstat().st_ino

    with pytest.raises(SocketTakenError) as caught:
        listen_unix(path, 0o600)

    assert str(path) in caught.value.message
    assert path.lstat().st_ino == inode
    first.close()


def test_a_daemon_whose_queue_is_full_counts_as_living(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    clients = []
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(2):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            try:
                client.connect(str(path))
            except BlockingIOError:
                pass
            clients.append(client)

        with pytest.raises(SocketTakenError):
            listen_unix(path, 0o600)
    for client in clients:
        client.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_never_removed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "control.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="isn't a socket"):
        listen_unix(path, 0o600)

    assert os.path.lexists(path)


def test_a_folder_that_anybody_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(ConfigError) as caught:
        listen_unix(folder / "control.sock", 0o600)

    assert "anybody can write" in caught.value.message
    assert "chmod o-w" in caught.value.hint


def test_closing_removes_our_socket_and_no_other(tmp_path: Path) -> None:
    ours, replaced = tmp_path / "a.sock", tmp_path / "b.sock"
    listeners = [listen_unix(ours, 0o600), listen_unix(replaced, 0o600)]
    replaced.unlink()
    replaced.write_text("someone else's")

    for listener in listeners:
        listener.close()
        listener.close()

    assert not ours.exists()
    assert replaced.read_text() == "someone else's"


def test_two_daemons_that_start_at_once_do_not_both_get_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    program = (
        "import sys; from pathlib import Path; from trimtab.api.sockets import listen_unix\n"
        "sys.stdin.readline()\n"
        "try: listener = listen_unix(Path(sys.argv[1]), 0o600)\n"
        "except Exception as error: print(type(error).__name__, flush=True)\n"
        "else: print('bound', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
    for racer in racers:
        racer.communicate("\n", timeout=10)

    assert sorted(said) == ["SocketTakenError", "bound"]


def test_systemds_sockets_are_found_by_name_and_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "systemd.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        descriptor = os.dup(theirs.fileno())
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"}

    passed = passed_by_systemd(environ, os.getpid(), first=descriptor)
    control, inference = activated(passed, "control"), activated(passed, "inference")

    assert control is not None
    assert inference is None
    assert not os.get_inheritable(descriptor)
    control.close()
    assert path.exists()


def test_descriptors_meant_for_another_process_are_not_ours() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "control:inference"}

    assert passed_by_systemd(environ, os.getpid()) == {}
