"""The trade-off as a picture: memory against speed, quality as colour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.profile.paper import PaperPoint
from trimtab.profile.shape import Shape
from trimtab.profile.targets import Target

GB: Final = 1e9
_MARKERS: Final = ("o", "s", "^", "D", "v", "P")


def draw(shape: Shape, target: Target, points: Sequence[PaperPoint], path: Path) -> None:
    """Draw a plan's points.

    Raises:
        UsageError: matplotlib isn't installed, or the file can't be written.
    """
    contexts = sorted({point.context for point in points})
    groups = [
        (f"{context} tokens of context", [p for p in points if p.context == context])
        for context in contexts
    ]
    labelled = [
        (
            label,
            [(p.total_bytes / GB, p.decode_tps, p.quality_ratio, p.precision) for p in group],
        )
        for label, group in groups
    ]
    title = f"{shape.name} on {target.name}, on paper"
    scatter(title, labelled, target.usable_bytes / GB, path)


def scatter(
    title: str,
    groups: Sequence[tuple[str, Sequence[tuple[float, float, float, str]]]],
    limit_gb: float | None,
    path: Path,
) -> None:
    """Points of memory (GB), tokens/s, quality and name, one marker for each group.

    Raises:
        UsageError: matplotlib isn't installed, or the file can't be written.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    every = [point for _, points in groups for point in points]
    low = min((quality for _, _, quality, _ in every), default=0.0)
    shown: Any = None
    for number, (label, points) in enumerate(groups):
        shown = axes.scatter(
            [memory for memory, _, _, _ in points],
            [speed for _, speed, _, _ in points],
            c=[quality for _, _, quality, _ in points],
            cmap="viridis",
            vmin=min(low, 0.9),
            vmax=1.0,
            marker=_MARKERS[number % len(_MARKERS)],
            s=90,
            edgecolors="black",
            linewidths=0.6,
            label=label,
            zorder=3,
        )
    if groups:
        for memory, speed, _, name in groups[0][1]:
            axes.annotate(
                name,
                (memory, speed),
                textcoords="offset points",
                xytext=(-9, -3),  # beside it: the same variant's other points stand above
                ha="right",
                fontsize=9,
            )
    top = max((memory for memory, _, _, _ in every), default=1.0) * 1.1
    if limit_gb is not None and limit_gb < top:
        axes.axvspan(limit_gb, top, color="tab:red", alpha=0.08, zorder=0)
        axes.axvline(limit_gb, color="tab:red", linestyle="--", linewidth=1)
        axes.text(
            limit_gb,
            0.98,
            " doesn't fit",
            color="tab:red",
            transform=axes.get_xaxis_transform(),
            va="top",
            fontsize=9,
        )
    axes.set_xlim(0, top)
    axes.set_ylim(0, max((speed for _, speed, _, _ in every), default=1.0) * 1.18)
    axes.set_xlabel("memory: weights, KV cache and worker (GB)")
    axes.set_ylabel("tokens per second, one conversation")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    legend = axes.legend(loc="upper right", fontsize=9)
    for handle in legend.legend_handles:  # colour means quality, not context
        handle.set_array(None)
        handle.set_facecolor("white")
    if shown is not None:
        figure.colorbar(shown, ax=axes, label="quality: exp(−mean KL to full precision)")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the plot can't be written: {error}") from error
    finally:
        pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib", hint="pip install 'trimtab[plot]', or leave --plot out."
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
