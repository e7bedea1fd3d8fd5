"""The configuration: which layer wins, where things are, and how faults are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trimtab.config import Loaded, OriginKind, load_config, shipped_policies
from trimtab.config.fields import fields
from trimtab.config.origins import lines_of
from trimtab.config.places import find_places
from trimtab.config.reference import reference
from trimtab.errors import ConfigError

NO_SYSTEM = Path("/nonexistent/trimtab.toml")


def load(file: Path | None = None, **environ: str) -> Loaded:
    return load_config(
        file, environ={"HOME": "/home/ann"} | environ, uid=1000, system_config=NO_SYSTEM
    )


def write(folder: Path, text: str) -> Path:
    file = folder / "trimtab.toml"
    file.write_text(text)
    return file


def fault(file: Path, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, **environ)
    return caught.value.message


def test_without_any_file_everything_is_in_the_users_own_folders() -> None:
    loaded = load(XDG_RUNTIME_DIR="/run/user/1000")

    config = loaded.config
    assert config.models == (Path("/home/ann/.local/share/trimtab/models"),)
    assert config.state == Path("/home/ann/.local/state/trimtab")
    assert config.cache == Path("/home/ann/.cache/trimtab")
    assert config.sockets.control == Path("/run/user/1000/trimtab/control.sock")
    assert config.policies == shipped_policies()
    assert loaded.file is None
    assert {origin.kind for origin in loaded.origins.values()} == {OriginKind.DEFAULT}


def test_without_a_runtime_directory_the_sockets_have_a_private_folder() -> None:
    assert load().config.sockets.folder == Path("/tmp/trimtab-1000")


def test_root_with_a_system_configuration_gets_the_systems_paths(tmp_path: Path) -> None:
    file = write(tmp_path, 'policy = "night"')
    (tmp_path / "policies").mkdir()
    loaded = load_config(environ={}, uid=0, system_config=file)

    assert loaded.file == file
    assert loaded.config.policy == "night"
    assert loaded.config.state == Path("/var/lib/trimtab")
    assert loaded.config.sockets.inference == Path("/run/trimtab/inference.sock")
    assert loaded.config.policies == tmp_path / "policies"


def test_under_systemd_its_directories_are_taken() -> None:
    environ = {
        "STATE_DIRECTORY": "/var/lib/private/trimtab",
        "CACHE_DIRECTORY": "/var/cache/private/trimtab:/other",
        "RUNTIME_DIRECTORY": "/run/private/trimtab",
    }
    places = find_places(environ, 61234, NO_SYSTEM)

    assert places.system_wide
    assert places.state == Path("/var/lib/private/trimtab")
    assert places.cache == Path("/var/cache/private/trimtab")
    assert places.runtime == Path("/run/private/trimtab")


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, 'model = "file"\npolicy = "file"\ntick = "2s"\n')
    loaded = load_config(
        file,
        flags={"model": ("--model", "flag")},
        environ={"HOME": "/h", "TRIMTAB_MODEL": "environ", "TRIMTAB_POLICY": "environ"},
        uid=1000,
        system_config=NO_SYSTEM,
    )

    assert (loaded.config.model, loaded.config.policy, loaded.config.tick_s) == (
        "flag",
        "environ",
        2.0,
    )
    assert str(loaded.origins["model"]) == "flag --model"
    assert str(loaded.origins["policy"]) == "environment TRIMTAB_POLICY"
    assert str(loaded.origins["tick"]) == f"file {file}:3"
    assert str(loaded.origins["engine.decoder"]) == "default"


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'policy = "night"')

    assert load(TRIMTAB_CONFIG=str(file)).config.policy == "night"


def test_units_are_written(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'tick = "500ms"\n[journal]\nsize = "1MiB"\n[api]\nmax_body = "64KiB"\nidle = "2min"\n',
    )
    config = load(file).config

    assert config.tick_s == 0.5
    assert config.journal.size_bytes == 2**20
    assert config.api.max_body_bytes == 64 * 1024
    assert config.api.idle_s == 120


def test_several_model_folders_are_separated_by_colons_in_a_variable() -> None:
    assert load(TRIMTAB_MODELS="/a:/b").config.models == (Path("/a"), Path("/b"))


def test_paths_are_relative_to_the_file_and_know_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    file = write(tmp_path, 'policies = "mine"\nmodels = ["~/models", "other"]\n')
    config = load(file).config

    assert config.policies == tmp_path / "mine"
    assert config.models == (Path("/home/ann/models"), tmp_path / "other")


def test_moving_the_sockets_folder_moves_both_sockets() -> None:
    sockets = load(TRIMTAB_SOCKETS_FOLDER="/srv/t").config.sockets

    assert sockets.control == Path("/srv/t/control.sock")
    assert sockets.inference == Path("/srv/t/inference.sock")


def test_every_fault_is_told_at_once_with_file_line_and_key(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'modle = "x"\ntick = 5\n[sockets]\ninference_mode = 660\n[api]\nmax_bodi = "3MiB"\n',
    )
    message = fault(file, TRIMTAB_ENGINE_THREADS="many")

    lines = sorted(message.splitlines())
    assert len(lines) == 5
    assert f"{file}:1: modle: there is no such key; did you mean model?" in lines
    assert f"{file}:6: api.max_bodi: there is no such key; did you mean api.max_body?" in lines
    assert any(
        line.startswith(f"{file}:2: tick: found 5 without a unit") and "'5s'" in line
        for line in lines
    )
    assert any(line.startswith(f"{file}:4: sockets.inference_mode:") for line in lines)
    assert any(line.startswith("TRIMTAB_ENGINE_THREADS: engine.threads:") for line in lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy = ", "line 1"),
        ("a = 1\na = 2", "line 2"),
        ("policy = 3", "policy"),
        ("[policy]\nname = 'x'", "policy"),
        ("sockets = 'x'", "sockets"),
        ("sockets.folder = 3", "sockets.folder"),
        ("[tcp]\nhost = '0.0.0.0'", "tcp.host"),
        ("[sensors.custom.Bad-Name]\npath='/x'\nunit='celsius'", "Bad-Name"),
        ("[sensors.custom.ok]\npath='/x'\nunit='furlong'", "sensors.custom.ok.unit"),
        ("[users]\nann = 'fast'", "users.ann"),
        ("models = []", "models"),
        ("tick = '0s'", "tick"),
    ],
)
def test_a_fault_names_its_place(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    message = fault(file)

    assert str(file) in message
    assert words in message


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (300 * 1024)])
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trimtab.toml"
    file.write_bytes(content)

    assert str(file) in fault(file)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert "no such configuration file" in fault(tmp_path / "missing.toml")


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    assert "can't be read" in fault(tmp_path)


def test_a_socket_path_that_is_too_long_is_refused_before_anything_is_bound() -> None:
    with pytest.raises(ConfigError, match="at most 107"):
        load(TRIMTAB_SOCKETS_FOLDER="/" + "x" * 120)


def test_a_misspelt_variable_is_a_warning_with_a_suggestion() -> None:
    warnings = load(TRIMTAB_POLIZY="x").warnings

    assert warnings == (
        "environment variable TRIMTAB_POLIZY means nothing to trimtab; "
        "did you mean TRIMTAB_POLICY?",
    )


def test_the_daemons_own_variables_are_none_of_its_users_mistakes() -> None:
    assert load(TRIMTAB_WORKERS_GROUP="/sys/fs/cgroup/x/workers").warnings == ()


def test_numbers_from_files_become_custom_signals(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "[sensors.custom.case]\npath = '/sys/x'\nunit = 'celsius'\nscale = 0.001\nperiod = '10s'\n",
    )
    custom = load(file).config.sensors.custom["case"]

    assert custom.unit == "celsius"
    assert custom.scale == 0.001
    assert custom.period_s == 10


def test_every_key_but_tables_has_a_variable_and_a_description() -> None:
    for field in fields():
        assert field.description.endswith(".")
        assert field.is_table or field.variable.startswith("TRIMTAB_")


def test_lines_of_keys_are_found_for_messages() -> None:
    text = "a = 1\n\n[b]\nc = 2 # x\n[ b . d ]\n'e' = 3\n"

    assert lines_of(text) == {"a": 1, "b": 3, "b.c": 4, "b.d": 5, "b.d.e": 6}


def test_the_shipped_policies_are_found_from_anywhere(tmp_path: Path) -> None:
    here: Any = Path.cwd()
    os.chdir(tmp_path)
    try:
        folder = shipped_policies()
    finally:
        os.chdir(here)

    assert (folder / "balanced.yaml").is_file()


DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_reference_in_the_docs_is_current() -> None:
    assert reference() in DOCUMENT.read_text(encoding="utf-8"), (
        "run `trimtab config reference` and put it into docs/configuration.md"
    )


def test_the_example_in_the_docs_is_right(tmp_path: Path) -> None:
    example = DOCUMENT.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    config = load(write(tmp_path, example)).config

    assert config.users == {"backup": "background"}
    assert config.api.drain_s == 30
