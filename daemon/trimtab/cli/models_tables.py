"""Models as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimtab.catalog import Catalog
from trimtab.catalog.disk import readable
from trimtab.catalog.manifest import Manifest, Variant, read
from trimtab.catalog.verify import Verdict


def manifests(catalog: Catalog) -> dict[str, Manifest]:
    """The manifests of a catalog's models, by id."""
    return {model_id: read(Path(folder)) for model_id, folder in sorted(catalog.locations.items())}


def catalog_json(catalog: Catalog) -> dict[str, Any]:
    """Everything that `models list` knows."""
    return {
        "folders": list(catalog.folders),
        "models": [
            {"folder": catalog.locations[model_id], **manifest_json(manifest)}
            for model_id, manifest in manifests(catalog).items()
        ],
        "damaged": [
            {"folder": d.folder, "variant": d.variant, "reason": d.reason, "hint": d.hint}
            for d in catalog.damaged
        ],
    }


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """A manifest without its lists of files."""
    value: dict[str, Any] = msgspec.to_builtins(manifest)
    for variant in value["variants"]:
        variant.pop("files", None)
    return value


def print_catalog(catalog: Catalog, console: Console) -> None:
    """A table for each model, and what is damaged."""
    for manifest in manifests(catalog).values():
        print_model(manifest, console)
    for entry in catalog.damaged:
        what = f"{Path(entry.folder).name} {entry.variant}".strip()
        console.print(f"[red]damaged[/red] {escape(what)}: {escape(entry.reason)}")
        if entry.hint:
            console.print(f"  {escape(entry.hint)}", highlight=False)


def print_model(manifest: Manifest, console: Console) -> None:
    """One model: a line about it, a table of its variants."""
    kv = readable(manifest.variants[0].kv_bytes_per_token)
    console.print(
        f"[bold]{escape(manifest.id)}[/bold]  {escape(manifest.name)}, "
        f"{escape(manifest.architecture)}, context {manifest.context_length}, {kv} of KV a token",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  variant")
    for title in ("disk", "memory", "perplexity", "mean KL", "same 1st", "quality", "tokens/s"):
        table.add_column(title, justify="right")
    for variant in manifest.variants:
        table.add_row(*_row(variant))
    console.print(table)
    if not all(variant.proven for variant in manifest.variants):
        console.print(
            "  ~ assumed, not measured: `trimtab models add` without --no-verify proves it"
        )
    threads = {v.measured_at_build.threads for v in manifest.variants if v.measured_at_build}
    if threads:
        counts = "/".join(str(count) for count in sorted(threads))
        console.print(
            f"  [dim]tokens/s: seen when it was proven, {counts} thread(s); "
            "`trimtab profile` measures this device[/dim]",
            highlight=False,
        )


def _row(variant: Variant) -> list[str]:
    hints = variant.measured_at_build
    about = "" if variant.proven else "~"
    return [
        f"  {variant.name}",
        readable(variant.disk_bytes),
        about + readable(variant.resident_bytes),
        _number(variant.perplexity, ".2f"),
        _number(variant.mean_kl, ".4f"),
        _number(variant.top1_agreement, ".1%"),
        f"{about}{variant.quality:.3f}",
        _number(hints.decode_tps if hints else None, ".0f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def print_verdicts(verdicts: list[Verdict], console: Console) -> None:
    """A line for each variant that was verified."""
    for verdict in verdicts:
        name = f"{verdict.model_id} {verdict.variant}"
        if verdict.problem:
            console.print(f"[red]✗[/red] {escape(name)}: {escape(verdict.problem)}")
        elif verdict.perplexity is None:
            console.print(f"[green]✓[/green] {escape(name)}: files as they were", highlight=False)
        else:
            proven = f" ({verdict.expected:.2f} proven)" if verdict.expected else ""
            console.print(
                f"[green]✓[/green] {escape(name)}: perplexity {verdict.perplexity:.2f}{proven}, "
                f"{verdict.decode_tps:.0f} tokens/s",
                highlight=False,
            )
            if verdict.shift is not None:
                console.print(f"  {_shift_words(verdict.shift)}", highlight=False, soft_wrap=True)


def _shift_words(shift: Mapping[str, Any]) -> str:
    by = "keys turned" if shift["shift_by"] == "turned" else "kept tokens read again"
    return (
        f"a shift of a window of {shift['shift_window']:.0f} tokens ({by}): "
        f"mean KL {shift['shift_mean_kl']:.3f}, perplexity {shift['shift_perplexity']:.2f} "
        f"after it and {shift['unshifted_perplexity']:.2f} without"
    )
