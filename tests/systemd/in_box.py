"""What must be true of the service, under a real systemd; `make test-systemd` runs it in a box.

Everything here happens inside a throw-away system (see systemd-box), as root, with Debian's python3
and nothing but its standard library. The steps build on each other, from installation to removal.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOX = Path("/opt/trimtab-box")
MODELS = Path("/var/lib/trimtab/models")
POLICY = Path("/etc/trimtab/policies/balanced.yaml")
DROP_INS = Path("/etc/systemd/system/trimtab.service.d")
RUN = Path("/run/trimtab")
PATIENCE_S = 60.0
POLL_S = 0.2
WATCHDOG_S = 4


# ---------------------------------------------------------------- the outside of the service


class Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("trimtab", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def ask(method: str, path: str, body: Any = None, name: str = "inference") -> tuple[int, Any]:
    connection = Unix(RUN / f"{name}.sock", PATIENCE_S)
    encoded = None if body is None else json.dumps(body)
    connection.request(method, path, encoded, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def status() -> dict[str, Any]:
    return ask("GET", "/trimtab/v1/status", name="control")[1]


def chat(*messages: str, **more: Any) -> dict[str, Any]:
    turns = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(messages)
    ]
    body = {"model": "tiny", "messages": turns, "max_tokens": 24, "seed": 1, "temperature": 0}
    code, answer = ask("POST", "/v1/chat/completions", body | more)
    assert code == 200, answer
    return answer


def command(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
    assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done


def shown(name: str, unit: str = "trimtab.service") -> str:
    return command("systemctl", "show", "-P", name, unit).stdout.strip()


def main_pid() -> int:
    return int(shown("MainPID"))


def until(true: Callable[[], Any], what: str, patience_s: float | None = None) -> None:
    patience_s = patience_s or PATIENCE_S
    ends_s = time.monotonic() + patience_s
    while True:
        try:
            if true():
                return
        except OSError:
            pass  # it is being restarted
        assert time.monotonic() < ends_s, f"{what}: not within {patience_s:.0f} s"
        time.sleep(POLL_S)


def ready() -> bool:
    return shown("ActiveState") == "active" and status()["state"] == "ready"


def lowest_oom_score() -> str:
    """What systemd can give: -1000, or what we have where the kernel lets nobody lower it."""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text().strip()
    try:
        own.write_text("-1000")
    except PermissionError:
        return Path("/proc/1/oom_score_adj").read_text().strip()
    own.write_text(before)
    return "-1000"


def left_behind() -> list[str]:
    """Every path of ours outside of what the test itself has brought."""
    places = ["/etc", "/usr", "/lib", "/var", "/run", "/opt"]
    prunes = [str(BOX), "/opt/trimtab", "/var/log", "/run/log", "/run/systemd"]
    skip = [part for path in prunes for part in ("-path", path, "-o")][:-1]
    found = command(
        "find", *places, "-xdev", "(", *skip, ")", "-prune", "-o", "-name", "*trimtab*", "-print"
    )
    return sorted(set(found.stdout.split()) - BEFORE)


BEFORE: set[str] = set()
"""What the machine below the box had under such names before anything was installed."""

# ---------------------------------------------------------------- the steps


def the_package_installs_and_starts_without_a_model() -> None:
    done = command("dpkg", "-i", str(BOX / "trimtab.deb"), check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: shown("ActiveState") == "active", "active")
    assert "no_model" in shown("StatusText"), shown("StatusText")
    assert shown("User") == "trimtab"
    assert shown("Slice") == "trimtab.slice"
    assert shown("ControlGroup").startswith("/trimtab.slice/")


def the_units_have_no_mistakes() -> None:
    units = ["trimtab.service", "trimtab-inference.socket", "trimtab-control.socket"]
    done = command("systemd-analyze", "verify", *units, "trimtab.slice", check=False)

    ours = [line for line in done.stderr.splitlines() if "trimtab" in line]
    assert not ours, ours


def the_hardening_scores_under_two() -> None:
    said = command("systemd-analyze", "security", "--no-pager", "trimtab.service").stdout
    found = re.search(r"Overall exposure level for trimtab.service: ([0-9.]+)", said)

    assert found is not None, said
    print(f"     systemd-analyze security: {found.group(1)}")
    assert float(found.group(1)) < 2.0, said


def the_sockets_are_for_the_group_and_for_root() -> None:
    uid = int(command("id", "-u", "trimtab").stdout)
    modes = {}
    for name in ("inference", "control"):
        found = (RUN / f"{name}.sock").stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert found.st_uid == uid
        modes[name] = stat.S_IMODE(found.st_mode)

    assert modes == {"inference": 0o660, "control": 0o600}


def a_model_is_served_and_the_status_line_shows_the_operating_point() -> None:
    shutil.copytree(BOX / "tiny", MODELS / "tiny")
    DROP_INS.mkdir(parents=True)
    (DROP_INS / "test.conf").write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
    command("systemctl", "daemon-reload")
    command("systemctl", "restart", "trimtab")
    until(ready, "ready")
    point = status()["point"]
    until(lambda: shown("StatusText").startswith("ready: "), "the status line")

    text = shown("StatusText")
    assert f"{point['variant']}, {point['context']} tokens" in text, text
    assert "policy balanced" in text
    assert chat("Hello there.")["trimtab"]["variant"] == point["variant"]


def an_answer_can_be_held_to_a_schema() -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}
    wanted = {"type": "json_schema", "json_schema": {"name": "three", "schema": schema}}
    answer = chat("Tell me a story.", max_tokens=60, response_format=wanted)

    assert len(json.loads(answer["choices"][0]["message"]["content"])) == 3


def a_member_of_the_group_may_ask_and_others_may_not() -> None:
    command("useradd", "--groups", "trimtab", "member")
    command("useradd", "stranger")
    address = ["--unix-socket", str(RUN / "inference.sock"), "http://localhost/v1/models"]
    member = command("runuser", "-u", "member", "--", "curl", "-sf", *address)
    stranger = command("runuser", "-u", "stranger", "--", "curl", "-sf", *address, check=False)
    orders = ["--unix-socket", str(RUN / "control.sock"), "http://localhost/trimtab/v1/status"]
    refused = command("runuser", "-u", "member", "--", "curl", "-sf", *orders, check=False)

    assert json.loads(member.stdout)["data"][0]["id"] == "tiny"
    assert stranger.returncode == 7
    assert refused.returncode == 7


def the_command_line_finds_the_daemon_as_root_and_as_a_member() -> None:
    as_root = json.loads(command("trimtab", "status", "--json").stdout)
    as_member = command("runuser", "-u", "member", "--", "trimtab", "status", "--json").stdout

    assert as_root["pid"] == main_pid()
    assert json.loads(as_member)["pid"] == main_pid()


def the_controller_is_protected_and_the_worker_is_the_victim() -> None:
    controller = Path(f"/proc/{main_pid()}")
    worker = Path(f"/proc/{status()['workers'][0]['pid']}")

    assert (controller / "cgroup").read_text().strip().endswith("trimtab.service/controller")
    assert (worker / "cgroup").read_text().strip().endswith("trimtab.service/workers")
    assert (controller / "oom_score_adj").read_text().strip() == lowest_oom_score()
    assert (worker / "oom_score_adj").read_text().strip() == "1000"
    locked = re.search(r"VmLck:\s+(\d+) kB", (controller / "status").read_text())
    limit = re.search(r"Max locked memory\s+(\w+)", (controller / "limits").read_text())
    assert locked is not None
    assert limit is not None
    # Where root may not raise limits, as in some containers, LimitMEMLOCK= is not to be had.
    assert (int(locked.group(1)) > 0) == (limit.group(1) == "unlimited"), limit.group(0)


def the_state_is_private() -> None:
    kv = Path("/var/cache/trimtab/kv")

    assert stat.S_IMODE(Path("/var/lib/trimtab").stat().st_mode) == 0o750
    assert not kv.exists() or stat.S_IMODE(kv.stat().st_mode) == 0o700
    for path in Path("/var/lib/trimtab").glob("*.json*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def a_good_policy_is_reloaded_without_a_new_worker() -> None:
    before = status()
    text = POLICY.read_text()
    POLICY.write_text(text.replace("description:", "description: Changed.", 1))
    command("systemctl", "reload", "trimtab")
    after = status()

    assert after["policy"]["revision"] != before["policy"]["revision"]
    assert after["workers"][0]["pid"] == before["workers"][0]["pid"]
    assert shown("ActiveState") == "active"


def a_bad_policy_fails_the_reload_and_changes_nothing() -> None:
    good, before = POLICY.read_text(), status()
    POLICY.write_text(good + "\nnonsense: true\n")
    reload = command("systemctl", "reload", "trimtab", check=False)
    until(lambda: "stale" in shown("StatusText"), "the status line says stale")
    after = status()
    POLICY.write_text(good)
    command("systemctl", "reload", "trimtab")

    assert reload.returncode != 0
    assert after["policy"]["revision"] == before["policy"]["revision"]
    assert after["policy"]["stale"]
    assert not status()["policy"]["stale"]


def a_hangup_reloads_too() -> None:
    before = status()["policy"]["revision"]
    text = POLICY.read_text().replace("Changed.", "Changed again.", 1)
    POLICY.write_text(text)
    command("systemctl", "kill", "--kill-whom=main", "-s", "HUP", "trimtab")
    until(lambda: status()["policy"]["revision"] != before, "another revision")
    until(lambda: shown("ActiveState") == "active", "active again")


def a_daemon_that_hangs_is_restarted_by_the_watchdog() -> None:
    before, restarts = main_pid(), int(shown("NRestarts"))
    os.kill(before, signal.SIGSTOP)
    began_s = time.monotonic()
    until(lambda: int(shown("NRestarts")) > restarts, "the watchdog", WATCHDOG_S * 8)
    print(f"     restarted {time.monotonic() - began_s:.1f} s after SIGSTOP ({WATCHDOG_S} s set)")
    until(ready, "ready again")

    assert main_pid() != before
    journal = command("journalctl", "-u", "trimtab", "--no-pager", "-o", "cat").stdout
    assert "Watchdog timeout" in journal


def a_busy_daemon_is_left_alone_by_the_watchdog() -> None:
    before = main_pid()
    ends_s = time.monotonic() + WATCHDOG_S * 2
    while time.monotonic() < ends_s:
        chat("Tell me more.", max_tokens=200)

    assert main_pid() == before


def the_socket_outlives_kill_9_and_a_client_that_comes_meanwhile_is_answered() -> None:
    inode, before = (RUN / "inference.sock").stat().st_ino, main_pid()
    workers = [worker["pid"] for worker in status()["workers"]]
    os.kill(before, signal.SIGKILL)
    answer = ask("GET", "/v1/models")

    assert answer[0] == 200
    assert (RUN / "inference.sock").stat().st_ino == inode
    assert main_pid() != before
    until(ready, "ready again")
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def a_conversation_goes_on_from_its_kv_after_a_restart() -> None:
    question = "Tell me about rivers and lakes and the sea."
    first = chat(question)["choices"][0]["message"]["content"]
    until(lambda: int(shown("NFileDescriptorStore")) >= 2, "kept by systemd")
    command("systemctl", "restart", "trimtab")
    until(ready, "ready again")
    usage = chat(question, first, "Go on.")["usage"]

    print(f"     {usage}")
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16, usage


def a_conversation_goes_on_from_its_kv_after_kill_9() -> None:
    question = "What grows in a garden in the spring?"
    first = chat(question)["choices"][0]["message"]["content"]
    os.kill(main_pid(), signal.SIGKILL)
    until(ready, "ready again")
    usage = chat(question, first, "Go on.")["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16, usage


def descriptors_that_nobody_needs_go_back() -> None:
    for number in range(8):
        chat(f"Question number {number} is another one, and it is long enough to be kept.")
    before = int(shown("NFileDescriptorStore"))
    command("systemctl", "restart", "trimtab")
    until(ready, "ready again")

    assert before >= 16
    assert int(shown("NFileDescriptorStore")) <= before + 2


def a_stop_lets_a_running_answer_end() -> None:
    connection = Unix(RUN / "inference.sock", PATIENCE_S)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body | {"max_tokens": 400}))
    answer = connection.getresponse()
    first = answer.readline()
    stopping = subprocess.Popen(["systemctl", "stop", "trimtab.service"])
    rest = answer.read().decode()

    assert first.startswith(b"data: ")
    assert rest.rstrip().endswith("data: [DONE]"), rest[-300:]
    assert stopping.wait(PATIENCE_S) == 0
    assert shown("Result") == "success"


def a_connection_starts_a_stopped_daemon() -> None:
    assert shown("ActiveState") == "inactive"

    assert ask("GET", "/v1/models")[0] == 200
    until(ready, "ready")


def a_wrong_configuration_is_told_and_not_tried_again() -> None:
    configuration = Path("/etc/trimtab/trimtab.toml")
    good = configuration.read_text()
    configuration.write_text("tick = 'never'\n")
    command("systemctl", "restart", "trimtab", check=False)
    until(lambda: shown("ActiveState") == "failed", "failed")
    journal = command("journalctl", "-u", "trimtab", "--no-pager", "-o", "cat", "-n", "30").stdout
    restarts = shown("NRestarts")
    configuration.write_text(good)
    command("systemctl", "reset-failed", "trimtab")
    command("systemctl", "start", "trimtab")
    until(ready, "ready again")

    assert "trimtab.toml" in journal, journal
    assert "Traceback" not in journal
    assert restarts == "0"


def the_door_over_tcp_opens_with_the_example_and_a_token() -> None:
    token = Path("/etc/trimtab/token")
    token.write_text("a-token-that-is-long-enough-to-guess-nothing")
    token.chmod(0o600)
    shutil.copy("/usr/share/doc/trimtab/examples/tcp.conf", DROP_INS)
    configuration = Path("/etc/trimtab/trimtab.toml")
    before = configuration.read_text()
    credential = "/run/credentials/trimtab.service/token"
    configuration.write_text(f'[tcp]\nenabled = true\ntoken_file = "{credential}"\n')
    command("systemctl", "daemon-reload")
    command("systemctl", "restart", "trimtab")
    until(ready, "ready")
    address = "http://127.0.0.1:8417/v1/models"
    without = command("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", address)
    bearer = ["-H", f"Authorization: Bearer {token.read_text()}"]
    having = command("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *bearer, address)
    configuration.write_text(before)
    (DROP_INS / "tcp.conf").unlink()
    token.unlink()

    assert without.stdout == "401"
    assert having.stdout == "200"


def every_example_is_a_drop_in_that_systemd_takes() -> None:
    examples = sorted(Path("/usr/share/doc/trimtab/examples").glob("*.conf"))
    said = {}
    for example in examples:
        shutil.copy(example, DROP_INS)
        done = command("systemd-analyze", "verify", "trimtab.service", check=False)
        (DROP_INS / example.name).unlink()
        said[example.name] = [line for line in done.stderr.splitlines() if example.name in line]

    names = ("gpu", "memory", "models-in-home", "otlp", "tcp")
    assert set(said) == {f"{name}.conf" for name in names}
    assert not any(said.values()), said


def nothing_was_said_in_tracebacks() -> None:
    journal = command("journalctl", "-u", "trimtab", "--no-pager", "-o", "cat").stdout

    assert "Traceback" not in journal, journal[journal.index("Traceback") - 500 :][:4000]
    assert "part_failed" not in journal


def an_upgrade_keeps_sockets_and_state() -> None:
    inode = (RUN / "inference.sock").stat().st_ino
    command("dpkg", "-i", str(BOX / "trimtab.deb"))
    until(ready, "ready again")

    assert (RUN / "inference.sock").stat().st_ino == inode
    assert (MODELS / "tiny").is_dir()


def removal_leaves_state_and_configuration_alone() -> None:
    command("dpkg", "-r", "trimtab")

    assert not Path("/usr/lib/trimtab").exists()
    assert not RUN.exists()
    assert (MODELS / "tiny").is_dir()
    assert POLICY.exists()
    assert shown("LoadState") != "loaded"


def purging_leaves_nothing() -> None:
    command("dpkg", "-P", "trimtab")

    assert left_behind() == []
    assert command("id", "trimtab", check=False).returncode != 0
    assert not command("pgrep", "-f", "trimtab.worker", check=False).stdout


def install_service_lays_the_units_out_and_starts() -> None:
    said = command("/opt/trimtab/bin/python3", "-m", "trimtab", "install-service").stdout
    shutil.copytree(BOX / "tiny", MODELS / "tiny")
    command("systemctl", "restart", "trimtab")
    until(ready, "ready")

    assert "trimtab.service" in said
    assert shown("User") == "trimtab"
    assert chat("Hello.")["usage"]["completion_tokens"] > 0
    security = command("systemd-analyze", "security", "--threshold=20", "trimtab.service")
    assert security.returncode == 0


def install_service_keeps_what_a_person_has_changed() -> None:
    text = POLICY.read_text().replace("description:", "description: Mine.", 1)
    POLICY.write_text(text)
    command("/opt/trimtab/bin/python3", "-m", "trimtab", "install-service")

    assert POLICY.read_text() == text


def install_service_removes_what_it_laid_out() -> None:
    remove = ["/opt/trimtab/bin/python3", "-m", "trimtab", "install-service", "--remove"]
    said = command(*remove).stdout

    assert shown("LoadState") == "not-found"
    assert not RUN.exists()
    assert (MODELS / "tiny").is_dir()
    assert "balanced.yaml" in said
    command(*remove, "--purge")
    assert left_behind() == []
    assert command("id", "trimtab", check=False).returncode != 0


STEPS: list[Callable[[], None]] = [
    the_package_installs_and_starts_without_a_model,
    the_units_have_no_mistakes,
    the_hardening_scores_under_two,
    the_sockets_are_for_the_group_and_for_root,
    a_model_is_served_and_the_status_line_shows_the_operating_point,
    an_answer_can_be_held_to_a_schema,
    a_member_of_the_group_may_ask_and_others_may_not,
    the_command_line_finds_the_daemon_as_root_and_as_a_member,
    the_controller_is_protected_and_the_worker_is_the_victim,
    the_state_is_private,
    a_good_policy_is_reloaded_without_a_new_worker,
    a_bad_policy_fails_the_reload_and_changes_nothing,
    a_hangup_reloads_too,
    a_daemon_that_hangs_is_restarted_by_the_watchdog,
    a_busy_daemon_is_left_alone_by_the_watchdog,
    the_socket_outlives_kill_9_and_a_client_that_comes_meanwhile_is_answered,
    a_conversation_goes_on_from_its_kv_after_a_restart,
    a_conversation_goes_on_from_its_kv_after_kill_9,
    descriptors_that_nobody_needs_go_back,
    a_stop_lets_a_running_answer_end,
    a_connection_starts_a_stopped_daemon,
    a_wrong_configuration_is_told_and_not_tried_again,
    the_door_over_tcp_opens_with_the_example_and_a_token,
    every_example_is_a_drop_in_that_systemd_takes,
    nothing_was_said_in_tracebacks,
    an_upgrade_keeps_sockets_and_state,
    removal_leaves_state_and_configuration_alone,
    purging_leaves_nothing,
    install_service_lays_the_units_out_and_starts,
    install_service_keeps_what_a_person_has_changed,
    install_service_removes_what_it_laid_out,
]


def main() -> int:
    failed = 0
    # What a container image is made from forbids services to start; this is a machine.
    Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)
    BEFORE.update(left_behind())
    for step in STEPS:
        name = step.__name__.replace("_", " ")
        began_s = time.monotonic()
        try:
            step()
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
            said = command("journalctl", "-u", "trimtab", "-n", "25", "--no-pager", check=False)
            print(said.stdout, flush=True)
        else:
            print(f"ok   {name} ({time.monotonic() - began_s:.1f} s)", flush=True)
    print(f"{len(STEPS) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
