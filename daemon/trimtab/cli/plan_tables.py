"""A plan on the screen: points, KV sizes, and what each policy would take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimtab.profile.paper import PROMPT_TOKENS, PaperPoint, kv_table
from trimtab.profile.picks import Pick
from trimtab.profile.shape import Shape
from trimtab.profile.targets import Target

GB = 1e9


def print_plan(
    shape: Shape,
    target: Target,
    points: Sequence[PaperPoint],
    chosen: Sequence[Pick],
    draft: Shape | None,
    console: Console,
) -> None:
    """All of it."""
    _print_head(shape, target, console)
    console.print(_points(points, draft))
    console.print("KV cache of one conversation, GB", style="dim")
    console.print(_kv(shape, sorted({point.context for point in points})))
    console.print("what each policy would take", style="dim")
    console.print(_picks(chosen))
    _print_notes(shape, target, points, console)


def _print_head(shape: Shape, target: Target, console: Console) -> None:
    size = f"{shape.parameters / GB:.2f} B parameters"
    if shape.experts is not None:
        size += (
            f", {shape.active_parameters / GB:.2f} B at work for a token "
            f"({shape.experts.active} of {shape.experts.count} experts)"
        )
    sharing = (
        "full attention"
        if shape.kv_heads == shape.heads
        else f"{shape.heads} heads share {shape.kv_heads} KV heads"
    )
    console.print(
        f"[bold]{escape(shape.name)}[/bold]  {size}, {shape.layers} layers, {sharing}",
        highlight=False,
    )
    console.print(
        f"on [bold]{escape(target.name)}[/bold]: {_gb(target.memory_bytes)} of memory "
        f"({_gb(target.reserve_bytes)} for the system), {target.bandwidth / GB:.1f} GB/s",
        highlight=False,
    )
    console.print(f"  [dim]{escape(target.source)}[/dim]", highlight=False)


def _points(points: Sequence[PaperPoint], draft: Shape | None) -> Table:
    """As wide as a terminal of 80 columns, so that no figure is cut."""
    sizes = ("weights\nGB", "KV\nGB", *(("draft\nGB",) if draft is not None else ()), "total\nGB")
    drafts = "with\ndrafts" if draft is not None else "n-gram\ndrafts"
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("  weights", no_wrap=True)
    for title in ("context", *sizes, "\ntok/s", drafts, "1st\ntoken", "qual-\nity"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("\nfits", no_wrap=True)
    last = ""
    for point in points:
        low, high = point.speculative_tps
        fits = "[green]yes[/green]" if point.fits else "[red]no[/red]"
        table.add_row(
            f"  {point.precision}" if point.precision != last else "",
            str(point.context),
            f"{(point.weights_bytes + point.scales_bytes) / GB:.2f}",
            f"{point.kv_bytes / GB:.2f}",
            *((f"{point.draft_bytes / GB:.2f}",) if draft is not None else ()),
            f"{point.total_bytes / GB:.2f}",
            _rate(point.decode_tps),
            f"{_rate(low)}–{_rate(high)}",
            "–" if point.first_token_s is None else f"{point.first_token_s:.1f} s",
            f"~{point.quality_ratio:.2f}",
            fits,
            style="" if point.fits else "dim",
        )
        last = point.precision
    return table


def _kv(shape: Shape, contexts: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  type")
    for context in contexts:
        table.add_column(str(context), justify="right")
    for kv_type, sizes in kv_table(shape, contexts).items():
        table.add_row(f"  {kv_type}", *(f"{sizes[context] / GB:.2f}" for context in contexts))
    return table


def _picks(chosen: Sequence[Pick]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("  policy", "point", "gives up"):
        table.add_column(title)
    for one in chosen:
        table.add_row(f"  {one.policy}", escape(one.point), escape(one.gives))
    return table


def _print_notes(
    shape: Shape, target: Target, points: Sequence[PaperPoint], console: Console
) -> None:
    notes = [
        "On paper: tokens/s is bandwidth ÷ bytes read, with half the context in the cache.",
        "Quality is assumed from SmolLM2-135M and the size; `trimtab profile --quality` measures.",
        "Scales of quantized weights are counted at 2 bytes for 128; groups of 32 take 4 times.",
    ]
    if points and points[0].first_token_s is not None:
        notes.append(f"First token: of a prompt of {PROMPT_TOKENS} tokens, nothing cached.")
    else:
        notes.append("First token: needs the device's computing speed, which isn't known.")
    if shape.window:
        notes.append(
            f"Some layers look back {shape.window} tokens only; trimtab keeps their cache in full."
        )
    notes += [f"Assumed: {text}." for text in shape.assumed]
    if target.by_precision:
        rates = ", ".join(f"{name} {rate / GB:.1f}" for name, rate in target.by_precision.items())
        notes.append(f"Weights are read here at (GB/s): {rates}.")
    for note in notes:
        console.print(f"  [dim]{escape(note)}[/dim]", highlight=False)


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"
