"""`trimtab plan`: a model on a device, on paper, before anything is downloaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from trimtab.cli.plan_tables import print_plan
from trimtab.cli.settings import json_option, loaded
from trimtab.config.policies import shipped_policies
from trimtab.config.schema import Config
from trimtab.domain.readings import Unit
from trimtab.errors import StateError, UsageError
from trimtab.policy.units import QuantityError, parse_quantity
from trimtab.profile.bandwidth import BUFFER_BYTES, buffer_bytes, read_bandwidth
from trimtab.profile.here import foreign, this_device
from trimtab.profile.known_models import KNOWN
from trimtab.profile.paper import (
    PROMPT_TOKENS,
    contexts_of,
    kv_table,
    paper_points,
)
from trimtab.profile.picks import paper_model, picks
from trimtab.profile.shape import KV_BITS, Shape
from trimtab.profile.shape_readers import read_shape
from trimtab.profile.store import load_profile
from trimtab.profile.targets import BOARDS, RESERVE_BYTES, Target, from_profile

POLICIES: Final = ("latency-first", "memory-first", "accuracy-first", "balanced")
LEAST_MEMORY: Final = 64 * 2**20
MOST_MEMORY: Final = 2**50
MOST_BANDWIDTH: Final = 1e14


@click.command()
@click.argument("model", required=False)
@click.option("--device", metavar="BOARD", help=f"this (default), or {', '.join(BOARDS)}.")
@click.option("--memory", metavar="SIZE", help="Memory of the device, such as 8GiB.")
@click.option("--bandwidth", metavar="RATE", help="What decoding reads from it, such as 17GB/s.")
@click.option("--reserve", metavar="SIZE", help="What the system holds. Default: 512MiB.")
@click.option("--context", "contexts", metavar="TOKENS", type=int, multiple=True)
@click.option(
    "--kv",
    type=click.Choice(list(KV_BITS)),
    default="float32",
    show_default=True,
    help="Type of the KV cache; trimtab's builds for the CPU keep float32, int8 on demand.",
)
@click.option("--draft", metavar="MODEL", help="A model that drafts for it, at int4.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw memory against speed into this PNG.",
)
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    model: str | None,
    device: str | None,
    memory: str | None,
    bandwidth: str | None,
    reserve: str | None,
    contexts: tuple[int, ...],
    kv: str,
    draft: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Say what MODEL would hold and do on a device, by arithmetic.

    MODEL is a name from the shipped table, a Hugging Face folder or config.json, or a GGUF file
    (its header is enough). Without one, the table is listed.
    """
    if model is None:
        _list_models(as_json)
        return
    shape = find_shape(model)
    drafting = find_shape(draft) if draft is not None else None
    target = find_target(loaded(ctx).config, device, memory, bandwidth, reserve)
    sizes = contexts_of(shape, _checked_contexts(contexts, shape))
    points = paper_points(shape, target, contexts=sizes, kv_types=(kv,), draft=drafting)
    built = paper_model(shape, points, kv)
    chosen = picks(built, target, shipped_policies(), POLICIES)
    if plot is not None:
        from trimtab.cli.plan_plot import draw

        draw(shape, target, points, plot)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "model": {**asdict(shape), **_sizes(shape)},
                    "device": {**asdict(target), "usable_bytes": target.usable_bytes},
                    "draft": drafting.name if drafting is not None else None,
                    "prompt_tokens": PROMPT_TOKENS,
                    "points": [asdict(point) for point in points],
                    "kv_bytes": kv_table(shape, sizes),
                    "policies": [asdict(one) for one in chosen],
                    "plot": str(plot) if plot is not None else None,
                }
            )
        )
        return
    print_plan(shape, target, points, chosen, drafting, Console())
    if plot is not None:
        click.echo(f"The plot is in {plot}.")


def find_shape(name: str) -> Shape:
    """A model by its name in the table, or by its file.

    Raises:
        UsageError: There is neither; the hint lists what is near.
    """
    known = KNOWN.get(name.lower())
    if known is not None:
        return known
    path = Path(name)
    if path.exists():
        return read_shape(path)
    raise UsageError(
        f"{name}: neither a file nor a model of the table",
        hint=f"The table has {', '.join(KNOWN)}.",
    )


def find_target(
    config: Config,
    device: str | None,
    memory: str | None,
    bandwidth: str | None,
    reserve: str | None,
) -> Target:
    """The device that the options describe; figures that are given replace a board's.

    Raises:
        UsageError: An option is wrong, or too little is known.
    """
    if device is None and memory is not None and bandwidth is not None:
        base = Target("a device", 0, 1.0, None, "as given")
    elif device in (None, "this"):
        base = _this_device(config)
    elif device in BOARDS:
        base = BOARDS[device]
    else:
        raise UsageError(f"there is no board {device}", hint=f"There is: {', '.join(BOARDS)}.")
    memory_bytes = base.memory_bytes
    if memory is not None:
        memory_bytes = int(_quantity(memory, Unit.BYTES, "--memory", LEAST_MEMORY, MOST_MEMORY))
    rate = base.bandwidth
    by_precision = base.by_precision
    if bandwidth is not None:
        rate = _quantity(bandwidth, Unit.BYTES_PER_S, "--bandwidth", 1e6, MOST_BANDWIDTH)
        by_precision = {}
    held = base.reserve_bytes if memory is None else min(RESERVE_BYTES, memory_bytes // 4)
    if reserve is not None:
        held = int(_quantity(reserve, Unit.BYTES, "--reserve", 0, memory_bytes))
    return Target(base.name, memory_bytes, rate, base.compute, base.source, held, by_precision)


def _this_device(config: Config) -> Target:
    """From the profile if there is a good one; else by reading memory for a second."""
    device = this_device(config.sensors.proc_root, "")
    for path in sorted((config.state / "profiles").glob("*.json")):
        target = _from_kept(config, path.stem)
        if target is not None:
            return target
    if device.memory_bytes == 0:
        raise UsageError(
            "this device doesn't say how much memory it has",
            hint="Give --memory and --bandwidth.",
        )
    rate = max(
        one.bytes_s for one in read_bandwidth(device.cores, 3, buffer_bytes(BUFFER_BYTES * 8))
    )
    return Target(
        "this device",
        device.memory_bytes,
        rate,
        None,
        "memory read for a moment; `trimtab profile --quick` measures more",
    )


def _from_kept(config: Config, model_id: str) -> Target | None:
    from trimtab.catalog.load import load_catalog

    model = load_catalog(config.models).models.get(model_id)
    try:
        kept = load_profile(config.state, model_id)
    except StateError:
        return None
    if model is None or kept is None:
        return None
    if foreign(kept, this_device(config.sensors.proc_root, kept.device.board)):
        return None
    return from_profile(kept, model)


def _quantity(text: str, unit: Unit, flag: str, least: float, most: float) -> float:
    try:
        value = parse_quantity(text, unit)
    except QuantityError as error:
        hint = f"Write {error.suggestion}." if error.suggestion else ""
        raise UsageError(f"{flag}: {error.message}", hint=hint) from error
    if not least <= value <= most:
        raise UsageError(f"{flag}: {text} is no size that a device has")
    return value


def _checked_contexts(contexts: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
    most = shape.context_length or 2**24
    for context in contexts:
        if not 1 <= context <= most:
            raise UsageError(f"--context: {context}: {shape.name} was made for 1 to {most} tokens")
    return tuple(sorted(set(contexts)))


def _sizes(shape: Shape) -> dict[str, Any]:
    return {"parameters": shape.parameters, "active_parameters": shape.active_parameters}


def _list_models(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({name: _sizes(shape) for name, shape in KNOWN.items()}))
        return
    for name, shape in KNOWN.items():
        active = ""
        if shape.experts is not None:
            active = f", {shape.active_parameters / 1e9:.1f} B at work"
        click.echo(f"{name:<18} {shape.parameters / 1e9:6.2f} B{active}")
