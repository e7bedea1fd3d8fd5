"""`make deb`: a package for Debian 12 with everything but Python itself.

The virtual environment under /usr/lib/trimtab is made with Debian's own python3, which the package
depends on. Dependencies are installed once and kept below build/deb until pyproject.toml changes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYTHON = Path("/usr/bin/python3")
HOME = "usr/lib/trimtab"
INSTALLED = Path("/") / HOME

CONTROL = """\
Package: trimtab
Version: {version}
Architecture: {architecture}
Maintainer: The trimtab maintainers <root@localhost>
Section: net
Priority: optional
Installed-Size: {installed_kib}
Depends: python3 (>= {python}~), python3 (<< {next_python}~), systemd (>= 252), \
libstdc++6, libgcc-s1, init-system-helpers, passwd
Recommends: python3-venv
Description: keeps a local language model useful while the device changes
 trimtab is a daemon for Linux gateways. It runs a language model on the spot and
 moves it between operating points as memory, temperatures and latency change,
 without breaking streams. It speaks OpenAI's and Ollama's APIs over Unix sockets.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=PROJECT / "build" / "deb")
    parser.add_argument("--out", type=Path, default=PROJECT / "dist")
    options = parser.parse_args()
    python = _python_version()
    root = options.build / "root"
    dependencies = _dependencies(options.build, python)
    print("deb: laying out the package", flush=True)
    shutil.rmtree(root, ignore_errors=True)
    _environment(root, dependencies)
    _files(root)
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    _control(root, version, python)
    options.out.mkdir(parents=True, exist_ok=True)
    package = options.out / f"trimtab_{version}_{_architecture()}.deb"
    print(f"deb: packing {package}", flush=True)
    # zstd would be smaller for the same time; xz takes minutes on two cores.
    _run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z3", "--build", str(root), str(package))
    print(f"deb: {package} ({package.stat().st_size >> 20} MiB)")
    return 0


def _python_version() -> tuple[int, int]:
    """Debian's Python, which must also be able to make virtual environments."""
    if not PYTHON.exists():
        sys.exit("deb: /usr/bin/python3 is missing: apt-get install python3")
    said = _said(str(PYTHON), "-c", "import sys, venv; print(*sys.version_info[:2])")
    major, minor = map(int, said.split())
    if (major, minor) < (3, 11):
        sys.exit(f"deb: /usr/bin/python3 is {major}.{minor}; trimtab needs 3.11 or newer")
    return major, minor


def _dependencies(build: Path, python: tuple[int, int]) -> Path:
    """The environment with all dependencies, kept until they change."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    # The collector's client is small, and the package has no pip to add it later.
    wanted = project["dependencies"] + project["optional-dependencies"]["otel"]
    key = hashlib.sha256(repr((wanted, python)).encode()).hexdigest()[:16]
    folder = build / f"dependencies-{key}"
    if (folder / ".complete").exists():
        return folder
    for old in build.glob("dependencies-*"):
        shutil.rmtree(old)
    print("deb: installing the dependencies with Debian's python3 (a minute or two)", flush=True)
    # The caller's pip does the work: the package needs none.
    _run(str(PYTHON), "-m", "venv", "--without-pip", str(folder))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    _run(*pip, "install", "--quiet", "--no-compile", *wanted)
    (folder / ".complete").touch()
    return folder


def _environment(root: Path, dependencies: Path) -> None:
    """The virtual environment as it will be found after the installation."""
    home = root / HOME
    home.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(dependencies / "lib", home / "lib", symlinks=True, ignore=skipped)
    site = next(home.glob("lib/python3.*/site-packages"))
    # So that no test of a dependency is shipped: they are a tenth of all files.
    for tests in [*site.glob("numpy/**/tests"), *site.glob("onnx/backend/test")]:
        shutil.rmtree(tests, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--python", str(dependencies / "bin" / "python")]
    _run(
        *pip, "install", "--quiet", "--no-compile", "--no-deps", "--target", str(site), str(PROJECT)
    )
    shutil.rmtree(site / "bin", ignore_errors=True)
    programs = home / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(PYTHON)
    (programs / "python").symlink_to("python3")
    script = programs / "trimtab"
    script.write_text(f"#!{INSTALLED}/bin/python3\nfrom trimtab.cli import main\n\nmain()\n")
    script.chmod(0o755)
    lines = ["home = /usr/bin", "include-system-site-packages = false"]
    (home / "pyvenv.cfg").write_text("\n".join(lines) + "\n")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/trimtab").symlink_to(f"../../{HOME}/bin/trimtab")


def _files(root: Path) -> None:
    """Units, configuration and documentation."""
    units = PROJECT / "systemd"
    for unit in sorted(units.glob("trimtab*.s*")):
        if unit.suffix in (".service", ".socket", ".slice"):
            _copy(unit, root / "lib/systemd/system" / unit.name)
    _copy(units / "trimtab.sysusers.conf", root / "usr/lib/sysusers.d/trimtab.conf")
    _copy(units / "trimtab.tmpfiles.conf", root / "usr/lib/tmpfiles.d/trimtab.conf")
    _copy(units / "trimtab.toml", root / "etc/trimtab/trimtab.toml")
    for policy in sorted((PROJECT / "policies").glob("*.yaml")):
        if not policy.name.endswith(".test.yaml"):
            _copy(policy, root / "etc/trimtab/policies" / policy.name)
    documents = root / "usr/share/doc/trimtab"
    for page in [*sorted((PROJECT / "docs").glob("*.md")), PROJECT / "CHANGELOG.md"]:
        _copy(page, documents / page.name)
    _copy(PROJECT / "LICENSE", documents / "copyright")
    for example in sorted((units / "examples").glob("*.conf")):
        _copy(example, documents / "examples" / example.name)


def _control(root: Path, version: str, python: tuple[int, int]) -> None:
    folder = root / "DEBIAN"
    folder.mkdir()
    size = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
    text = CONTROL.format(
        version=version,
        architecture=_architecture(),
        installed_kib=size >> 10,
        python=f"{python[0]}.{python[1]}",
        next_python=f"{python[0]}.{python[1] + 1}",
    )
    (folder / "control").write_text(text)
    conffiles = sorted(path for path in (root / "etc").rglob("*") if path.is_file())
    (folder / "conffiles").write_text("".join(f"/{path.relative_to(root)}\n" for path in conffiles))
    for script in ("postinst", "prerm", "postrm"):
        _copy(PROJECT / "systemd" / "deb" / script, folder / script, 0o755)
    _set_modes(root)


def _set_modes(root: Path) -> None:
    """Everybody may read, whatever the builder's umask is."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runs else 0o644)


def _copy(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _architecture() -> str:
    return _said("dpkg", "--print-architecture").strip()


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _run(*command: str) -> None:
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(command, env=os.environ | quiet, check=False)
    if done.returncode:
        sys.exit(f"deb: `{' '.join(command[:6])} ...` failed with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
