"""`trimtab models recommend`: which variants to have on this device, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimtab.catalog.disk import readable
from trimtab.catalog.load import load_catalog
from trimtab.catalog.recipes import MODELS
from trimtab.cli.plan import find_shape, find_target
from trimtab.cli.settings import json_option, loaded
from trimtab.config.engine_threads import default_threads
from trimtab.config.policies import shipped_policies
from trimtab.config.schema import Config
from trimtab.domain.models import ModelSpec
from trimtab.errors import UsageError
from trimtab.policy.compile import device_variants
from trimtab.policy.compiled import Policy
from trimtab.policy.load import load_policy
from trimtab.profile.here import this_device
from trimtab.profile.known import known_here
from trimtab.profile.paper import contexts_of, paper_points
from trimtab.profile.picks import paper_model
from trimtab.profile.recommend import Advice, recommend
from trimtab.profile.targets import RESERVE_BYTES


@click.command("recommend")
@click.argument("model", required=False)
@click.option("--policy", "policy_name", metavar="NAME", help="Default: the one in force.")
@click.option("--device", metavar="BOARD", help="Default: this one.")
@click.option("--memory", metavar="SIZE", help="Memory of the device, such as 8GiB.")
@click.option("--bandwidth", metavar="RATE", help="What decoding reads from it, such as 17GB/s.")
@json_option
@click.pass_context
def recommend_variants(
    ctx: click.Context,
    model: str | None,
    policy_name: str | None,
    device: str | None,
    memory: str | None,
    bandwidth: str | None,
    as_json: bool,
) -> None:
    """Say which variants of MODEL to build or fetch for this device and policy, and why.

    A model that is here is judged by this device's profile, or by its manifest if there is none;
    any other, and any other device, on paper, as `trimtab plan` does it.
    """
    config = loaded(ctx).config
    found = load_catalog(config.models).models
    name = model or config.model or (next(iter(found)) if len(found) == 1 else None)
    if name is None:
        raise UsageError("say which model", hint="`trimtab plan` lists those of the table.")
    on_paper = name not in found or any(value for value in (device, memory, bandwidth))
    if on_paper:
        judged, room, source = _on_paper(config, name, device, memory, bandwidth)
    else:
        judged, room, source = _measured(config, found[name])
    here = frozenset(v.name for v in found[name].variants) if name in found else frozenset()
    policy = _policy(config, policy_name, judged)
    advice = recommend(judged, policy, room, here)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "model": name,
                    "policy": policy.name,
                    "source": source,
                    "room_bytes": room,
                    "variants": [asdict(one) for one in advice],
                    "command": command(name, advice),
                }
            )
        )
        return
    _print(name, policy, room, source, advice)


def command(model: str, advice: Sequence[Advice]) -> str:
    """What gets the advised variants that aren't here; empty if all are."""
    missing = [one.variant for one in advice if one.take and not one.here]
    if not missing:
        return ""
    source = model if model in MODELS else f"--from FOLDER_OR_GGUF --id {model}"
    return f"trimtab models build {source} --variants {','.join(missing)}"


def _on_paper(
    config: Config, name: str, device: str | None, memory: str | None, bandwidth: str | None
) -> tuple[ModelSpec, int, str]:
    shape = find_shape(name)
    target = find_target(config, device, memory, bandwidth, None)
    points = paper_points(shape, target, contexts=contexts_of(shape)[:1], kv_types=("float32",))
    return (
        paper_model(shape, points, "float32"),
        target.usable_bytes,
        f"on paper, for {target.name}",
    )


def _measured(config: Config, model: ModelSpec) -> tuple[ModelSpec, int, str]:
    proc = config.sensors.proc_root
    device = this_device(proc, "")
    threads = config.engine.threads or default_threads(device.cores)
    known = known_here(model, config.state, proc, threads)
    source = (
        "measured on this device"
        if known.measured
        else "as seen when it was built; `trimtab profile` measures this device"
    )
    return known.model or model, max(0, device.memory_bytes - RESERVE_BYTES), source


def _policy(config: Config, name: str | None, model: ModelSpec) -> Policy:
    folder: Path = config.policies if config.policies.is_dir() else shipped_policies()
    return load_policy(name or config.policy, folder, device_variants(model)).require()


def _print(name: str, policy: Policy, room: int, source: str, advice: Sequence[Advice]) -> None:
    console = Console()
    console.print(
        f"[bold]{escape(name)}[/bold] under the policy [bold]{escape(policy.name)}[/bold], "
        f"{readable(room)} beside the system  [dim]{escape(source)}[/dim]",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("variant")
    for title in ("memory", "tok/s", "quality"):
        table.add_column(title, justify="right")
    table.add_column("why")
    for one in advice:
        table.add_row(
            "[green]✓[/green]" if one.take else "[dim]–[/dim]",
            one.variant + ("" if one.here or not one.take else " (to get)"),
            readable(one.memory_bytes),
            "–" if one.decode_tps is None else f"{one.decode_tps:.1f}",
            f"{one.quality_ratio:.2f}",
            escape(one.why),
        )
    console.print(table)
    line = command(name, advice)
    if line:
        console.print(f"  `{escape(line)}` gets what is missing.", highlight=False)
    elif any(one.take for one in advice):
        console.print("  All of these are here.", highlight=False)
    else:
        console.print("  Nothing fits: take a smaller model, or another policy.", highlight=False)
