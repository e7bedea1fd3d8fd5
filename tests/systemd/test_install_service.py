"""`trimtab install-service` into a folder: what it lays out, keeps and takes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trimtab.cli.install_service import install_service
from trimtab.cli.service_layout import check_reachable
from trimtab.errors import UsageError

UNITS = Path(__file__).parent.parent.parent / "systemd"


def install(root: Path, *more: str) -> Result:
    return CliRunner().invoke(install_service, ["--root", str(root), *more])


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_it_lays_out_units_user_folders_and_configuration(tmp_path: Path) -> None:
    result = install(tmp_path)

    assert result.exit_code == 0, result.output
    laid = files(tmp_path)
    assert "etc/systemd/system/trimtab.service" in laid
    assert "etc/systemd/system/trimtab-control.socket" in laid
    assert "etc/sysusers.d/trimtab.conf" in laid
    assert "etc/tmpfiles.d/trimtab.conf" in laid
    assert "etc/trimtab/policies/balanced.yaml" in laid
    assert not [name for name in laid if ".test.yaml" in name]


def test_the_units_run_this_installation(tmp_path: Path) -> None:
    install(tmp_path)
    unit = (tmp_path / "etc/systemd/system/trimtab.service").read_text()

    assert "/usr/bin/trimtab " not in unit
    assert "-m trimtab run\n" in unit
    assert "-m trimtab policy reload\n" in unit


def test_removal_leaves_nothing(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, "--remove")

    assert files(tmp_path) == []


def test_what_a_person_changed_stays_through_both(tmp_path: Path) -> None:
    install(tmp_path)
    mine = tmp_path / "etc/trimtab/policies/balanced.yaml"
    mine.write_text("mine")
    again = install(tmp_path)
    removed = install(tmp_path, "--remove")

    assert "balanced.yaml (it was changed)" in again.output
    assert "balanced.yaml (it was changed; --purge takes it)" in removed.output
    assert files(tmp_path) == ["etc/trimtab/policies/balanced.yaml"]


def test_purging_takes_state_and_changed_files_too(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "etc/trimtab/policies/balanced.yaml").write_text("mine")
    (tmp_path / "var/lib/trimtab/models").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/trimtab.service.d").mkdir()
    install(tmp_path, "--remove", "--purge")

    assert files(tmp_path) == []
    assert not (tmp_path / "var/lib/trimtab").exists()
    assert not (tmp_path / "etc/systemd/system/trimtab.service.d").exists()


def test_purging_alone_is_refused(tmp_path: Path) -> None:
    result = install(tmp_path, "--purge")

    assert isinstance(result.exception, UsageError)
    assert result.exception.message == "--purge goes with --remove"


def test_the_package_and_it_do_not_fight(tmp_path: Path) -> None:
    packaged = tmp_path / "lib/systemd/system"
    packaged.mkdir(parents=True)
    (packaged / "trimtab.service").touch()
    result = install(tmp_path)

    assert isinstance(result.exception, UsageError)
    assert "Debian package" in result.exception.message


@pytest.mark.parametrize("place", ["/root/venv/bin/python", "/home/me/x", "/tmp/venv/bin/python"])
def test_an_installation_that_the_service_cannot_read_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="closed to the service's own user") as refused:
        check_reachable([Path("/opt/trimtab/bin/python"), Path(place)])

    assert "/opt/trimtab" in refused.value.hint


def test_each_loosened_line_of_the_service_has_a_reason() -> None:
    lines = (UNITS / "trimtab.service").read_text().splitlines()
    loose = ("ProtectControlGroups=no", "ProcSubset=all", "SystemCallFilter=sched_setaffinity")
    before = {line: lines[index - 1] for index, line in enumerate(lines) if line in loose}

    assert set(before) == set(loose)
    assert all(line.startswith("# ") for line in before.values()), before


def test_the_scripts_of_the_package_can_be_run() -> None:
    assert all(os.access(UNITS / "deb" / name, os.X_OK) for name in ("postinst", "prerm", "postrm"))
