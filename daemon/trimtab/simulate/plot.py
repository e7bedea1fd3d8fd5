"""A simulated run as a picture: memory and variant, speed, what requests earned, and heat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.simulate.conditions import GIB
from trimtab.simulate.policy import HEAT_LIMIT
from trimtab.simulate.run import Result
from trimtab.simulate.scenario_set import Scenario

BINS: Final = 96
HOUR_S: Final = 3600.0


def draw(scenario: Scenario, result: Result, path: Path) -> None:
    """Draw a run.

    Raises:
        UsageError: matplotlib isn't installed, or the file can't be written.
    """
    pyplot = _pyplot()
    heated = bool(result.temperatures)
    ratios = (3, 1, 2, 2) if heated else (3, 1, 2)
    figure, (memory, speed, earned, *warm) = pyplot.subplots(
        len(ratios), 1, figsize=(10, 7), sharex=True, layout="constrained", height_ratios=ratios
    )
    for axes in warm:
        _heat(axes, result)
    _memory(memory, scenario, result)
    conditions, end = scenario.conditions, scenario.length_s / HOUR_S
    hours = [at_s / HOUR_S for at_s in conditions.starts_s]
    speed.step([*hours, end], [*conditions.speed, conditions.speed[-1]], where="post")
    speed.set_ylabel("speed")
    speed.set_ylim(0, 1.1)
    width = scenario.length_s / BINS
    sums, counts = [0.0] * BINS, [0] * BINS
    for one in result.served:
        place = min(BINS - 1, int(one.arrived_s / width))
        sums[place] += one.score
        counts[place] += 1
    mean = [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]
    centres = [(place + 0.5) * width / HOUR_S for place in range(BINS)]
    earned.bar(centres, mean, width=width / HOUR_S * 0.9)
    earned.set_ylabel("quality × in time")
    earned.set_ylim(0, 1)
    (warm[-1] if warm else earned).set_xlabel("hours")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the plot can't be written: {error}") from error
    finally:
        pyplot.close(figure)


def _memory(axes: Any, scenario: Scenario, result: Result) -> None:
    conditions, end = scenario.conditions, scenario.length_s / HOUR_S
    hours = [at_s / HOUR_S for at_s in conditions.starts_s]
    caps = [cap / GIB for cap in conditions.cap_bytes]
    axes.step([*hours, end], [*caps, caps[-1]], where="post", label="memory for the model")
    sizes = {rung.name: rung.size_bytes / GIB for rung in scenario.ladder.rungs}
    times = [at_s / HOUR_S for at_s, _ in result.points]
    held = [sizes.get(variant or "", 0.0) for _, variant in result.points]
    axes.step([*times, end], [*held, held[-1]], where="post", label="loaded")
    for name, size in sizes.items():
        axes.annotate(name, (0, size), fontsize=8, va="bottom")
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize=9)
    axes.set_title(f"{scenario.name}: score {result.score:.3f}, {result.switches} switches")


def _heat(axes: Any, result: Result) -> None:
    """The temperature and its limit, and what the knobs against heat leave of full speed."""
    times = [at_s / HOUR_S for at_s, _ in result.temperatures]
    axes.plot(times, [celsius for _, celsius in result.temperatures], color="tab:red", lw=1)
    axes.axhline(HEAT_LIMIT.enter_celsius, color="tab:red", lw=0.8, ls="--")
    axes.set_ylabel("°C")
    pace = axes.twinx()
    moved = [at_s / HOUR_S for at_s, _ in result.moves]
    paces = [point.pace_ratio for _, point in result.moves]
    pace.step([*moved, times[-1]], [*paces, paces[-1]], where="post", color="tab:gray", lw=1)
    pace.set_ylabel("pace", color="tab:gray")
    pace.set_ylim(0, 1.1)


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
