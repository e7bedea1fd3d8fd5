"""A profile as a picture: this device's own triangle of memory, speed and quality."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.cli.plan_plot import scatter
from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Kind, Profile
from trimtab.errors import UsageError
from trimtab.planner.device_fit import fit, measured_qualities

GB: Final = 1e9


def draw(profile: Profile, model: ModelSpec, path: Path) -> None:
    """Draw every variant at the shortest and the longest measured context.

    Raises:
        UsageError: Nothing was measured yet, matplotlib isn't installed, or the file can't be
            written.
    """
    measured = [one for one in profile.all(Kind.DECODE) if not one.detail]
    if not measured:
        raise UsageError("no speed was measured yet", hint="Run `trimtab profile` first.")
    device = fit(profile)
    qualities = measured_qualities(profile)
    threads = sorted({one.threads for one in measured})
    contexts = sorted({one.tokens for one in measured})
    groups = []
    for count in threads:
        for context in sorted({contexts[0], contexts[-1]}):
            points = []
            for one in measured:
                variant = model.variant(one.variant)
                if variant is None or (one.threads, one.tokens) != (count, context):
                    continue
                memory = device.memory_bytes(variant, context).value / GB
                quality = qualities.get(variant.name, variant.quality)
                points.append((memory, 1 / one.value, quality, variant.name))
            if points:
                plural = "s" if count > 1 else ""
                groups.append((f"{count} thread{plural}, {context} tokens cached", points))
    title = f"{profile.model_id} on {profile.device.cpu}, {profile.device.cores} cores, measured"
    scatter(title, groups, None, path)
