"""Libraries without what they bring along for others."""

from __future__ import annotations

import subprocess
import sys

UNUSED = ("multiprocessing", "concurrent.futures.process", "http.server", "urllib.request", "rich")


def told_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_daemon_imports_no_servers_and_no_process_pools() -> None:
    there = told_by(
        "import sys, trimtab.cli.run\n"
        "from trimtab.lean import lean_daemon\n"
        "lean_daemon()\n"
        "import trimtab.app\n"
        f"print([name for name in {UNUSED} if name in sys.modules])"
    )

    assert there == "[]"


def test_whoever_wants_what_was_left_out_gets_the_real_thing() -> None:
    found = told_by(
        "from trimtab.lean import lean_daemon\n"
        "lean_daemon()\n"
        "import html, multiprocessing, urllib.request\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "print(html.unescape('&eacute;'), multiprocessing.cpu_count() > 0,\n"
        "      urllib.request.Request('http://x/').host, ProcessPoolExecutor.__module__)"
    )

    assert found == "é True x concurrent.futures.process"


def test_a_library_that_is_there_already_stays_as_it_is() -> None:
    same = told_by(
        "import html, starlette.applications as before\n"
        "from trimtab.lean import import_lean\n"
        "leave = {'unused': ('html.entities',), 'again': ('html',)}\n"
        "after = import_lean('starlette.applications', **leave)\n"
        "import html as again\n"
        "print(after is before, again is html, len(html.entities.html5) > 2000)"
    )

    assert same == "True True True"
