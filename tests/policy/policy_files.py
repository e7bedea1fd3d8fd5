"""Policy files for tests: a sound one, and ways of changing it."""

from __future__ import annotations

from pathlib import Path

from trimtab.policy.compile import DeviceVariants
from trimtab.policy.load import LoadResult, load_policy

DESIGN_EXAMPLE = (Path(__file__).parent / "data" / "voice-assistant.yaml").read_text("utf-8")
"""Word for word what the design has."""

MINIMAL = "version: 1\nname: minimal\nprotect: [latency, memory]\n"

VARIANTS = ("fp32", "int8", "int4_mixed", "int4")
QUALITY = {"fp32": 1.0, "int8": 0.98, "int4_mixed": 0.84, "int4": 0.7}


def load_text(
    text: str | bytes,
    folder: Path,
    *,
    name: str = "minimal",
    variants: tuple[str, ...] | None = None,
    fingerprints: dict[str, str] | None = None,
) -> LoadResult:
    """Write a policy into the folder and load it."""
    path = folder / f"{name}.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    if variants is None:
        return load_policy(path, folder, None)
    quality = {key: QUALITY[key] for key in variants if key in QUALITY}
    return load_policy(path, folder, DeviceVariants(variants, quality, fingerprints or {}))


def load_changed(
    folder: Path, *changes: tuple[str, str], variants: tuple[str, ...] | None = None
) -> LoadResult:
    """The design's example with some texts replaced; each must be there."""
    text = DESIGN_EXAMPLE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return load_text(text, folder, name="voice-assistant", variants=variants)


def rule(
    when: str, leave: str | None, then: str = "{context: {at_most: 2048}}", name: str = "a rule"
) -> str:
    """A minimal policy with one rule."""
    text = f"{MINIMAL}rules:\n  - name: {name}\n    when: {when}\n    then: {then}\n"
    return text + (f"    leave: {leave}\n" if leave else "")
