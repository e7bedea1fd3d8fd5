"""`trimtab install-service`: units, user, folders and configuration, laid out and taken away."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from trimtab.cli.service_layout import (
    CONFIGURATION,
    DROP_INS,
    STARTED,
    STATE,
    UNITS,
    Laid,
    check_reachable,
    layout,
    shipped_units,
)
from trimtab.cli.service_system import run
from trimtab.config.policies import shipped_policies
from trimtab.errors import TrimtabError, UsageError

_PACKAGE_UNIT: Final = Path("lib/systemd/system/trimtab.service")


@click.command("install-service")
@click.option("--remove", is_flag=True, help="Take the service away; state stays.")
@click.option("--purge", is_flag=True, help="With --remove: state, models and configuration too.")
@click.option("--no-start", is_flag=True, help="Lay everything out, and start nothing.")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    help="Lay the files out below this folder alone, for images.",
)
def install_service(remove: bool, purge: bool, no_start: bool, root: Path) -> None:
    """Make trimtab a systemd service of this machine, or take it away again.

    It writes units to /etc/systemd/system, the user and group `trimtab`, folders, and the
    configuration in /etc/trimtab; what you have changed there stays. Run it as root, from an
    installation that other users can read, such as a virtual environment below /opt.
    """
    if purge and not remove:
        raise UsageError("--purge goes with --remove")
    here = root == Path("/")
    _check(root, here)
    program = f"{sys.executable} -m trimtab"
    files = layout(shipped_units(), shipped_policies(), program)
    if remove:
        _remove(files, root, here=here, purge=purge)
        return
    package = Path(__file__).resolve().parent
    executable = Path(sys.executable)
    check_reachable([executable, executable.resolve(), package] if here else [])
    _install(files, root)
    if here:
        _start(no_start=no_start)


def _check(root: Path, here: bool) -> None:
    """Refuse early what would fail halfway.

    Raises:
        UsageError: It can't work here, and why.
    """
    if here and os.geteuid() != 0:
        raise UsageError("a service is installed by root", hint="`sudo trimtab install-service`")
    if here and not Path("/run/systemd/system").is_dir():
        raise UsageError(
            "systemd doesn't run this machine",
            hint="`trimtab run` serves in the foreground; --root lays files out for an image.",
        )
    if (root / _PACKAGE_UNIT).exists():
        raise UsageError(
            "the Debian package has the service already",
            hint="`systemctl status trimtab`; `apt-get remove trimtab` takes it away.",
        )


def _install(files: Sequence[Laid], root: Path) -> None:
    for file in files:
        path = root / file.path
        if file.owned_by_person and path.exists():
            if path.read_text() != file.content:
                click.echo(f"kept     {path} (it was changed)")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.content)
            path.chmod(0o644)
        except OSError as error:
            raise TrimtabError(f"{path}: can't be written: {error.strerror}") from error
        click.echo(f"wrote    {path}")


def _start(*, no_start: bool) -> None:
    run("systemd-sysusers", "trimtab.conf")
    run("systemd-tmpfiles", "--create", "trimtab.conf")
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", *STARTED)
    if no_start:
        click.echo("`systemctl start trimtab` starts it.")
        return
    run("systemctl", "start", *STARTED[1:])
    run("systemctl", "restart", STARTED[0])
    click.echo("trimtab.service runs: `systemctl status trimtab`, `journalctl -u trimtab`.")
    click.echo("Members of the group trimtab may use it: `usermod -aG trimtab NAME`.")


def _remove(files: Sequence[Laid], root: Path, *, here: bool, purge: bool) -> None:
    if here:
        run("systemctl", "disable", "--now", *STARTED, must=False)
        run("systemctl", "stop", "trimtab.slice", must=False)
    for file in files:
        path = root / file.path
        if not path.exists():
            continue
        if file.owned_by_person and not purge and path.read_text() != file.content:
            click.echo(f"kept     {path} (it was changed; --purge takes it)")
            continue
        path.unlink()
        click.echo(f"removed  {path}")
    folders = [CONFIGURATION / "policies", CONFIGURATION]
    _remove_folders(root, [*folders, *STATE, DROP_INS] if purge else [], whole=True)
    _remove_folders(root, folders, whole=False)
    if here:
        _remove_traces(purge=purge)


def _remove_folders(root: Path, folders: Sequence[Path], *, whole: bool) -> None:
    for folder in folders:
        path = root / folder
        if not path.is_dir():
            continue
        if whole:
            shutil.rmtree(path)
        elif not any(path.iterdir()):
            path.rmdir()
        else:
            continue
        click.echo(f"removed  {path}")


def _remove_traces(*, purge: bool) -> None:
    """What isn't a file of ours: the manager's memory of the units, sockets, the user."""
    run("systemctl", "daemon-reload")
    run("systemctl", "reset-failed", *UNITS, must=False)
    shutil.rmtree("/run/trimtab", ignore_errors=True)
    if purge:
        run("userdel", "trimtab", must=False)
        run("groupdel", "trimtab", must=False)
    elif any((Path("/") / folder).exists() for folder in STATE):
        click.echo("State and models are still in /var/lib/trimtab; --remove --purge takes them.")
    drop_ins = Path("/") / DROP_INS
    if drop_ins.exists():
        click.echo(f"kept     {drop_ins} (yours; --purge takes it)")
