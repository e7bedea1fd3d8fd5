"""A profile on the screen: the bar while it runs, and its tables."""

from __future__ import annotations

import datetime
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from trimtab.catalog.disk import readable
from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import STOLEN, Kind, Measurement, Profile, TaskQuality, VariantQuality

DISTURBED = "~"
"""Stands before a figure none of whose samples was undisturbed."""

WIDE = 3.0
"""A perplexity that may be so many times as high is shown without its interval."""


class ProfileProgress:
    """A bar with an estimate on a terminal, a line for each step elsewhere.

    Args:
        console: Where it is shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> ProfileProgress:
        """Show the bar."""
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0, left="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.stop()

    def doing(self, title: str, done_ratio: float, left_s: float) -> None:
        """A step begins."""
        left = f"{time_left(left_s)} left"
        if self._bar is None:
            self._console.print(f"{done_ratio:4.0%}  {left:>12}  {title}", highlight=False)
        else:
            self._bar.update(self._task, completed=done_ratio, description=escape(title), left=left)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"  {escape(text)}", highlight=False)


def time_left(seconds: float) -> str:
    """A rough time for people."""
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5)} s"
    return f"{seconds / 60:.0f} min"


def print_profile(profile: Profile, model: ModelSpec, console: Console) -> None:
    """Everything that was measured."""
    _print_head(profile, console)
    for threads in _thread_counts(profile):
        console.print(f"with {threads} thread{'s' if threads > 1 else ''}", style="dim")
        console.print(_speeds(profile, model, threads))
    extras = _extras(profile, model)
    if extras.row_count:
        console.print(extras)
    if profile.quality:
        print_quality(profile.quality, profile.quality_source, console)
    _print_notes(profile, console)


def print_quality(quality: tuple[VariantQuality, ...], source: str, console: Console) -> None:
    """Quality by variant and task, with 95 % intervals."""
    console.print(f"quality over {escape(source)} (95 % intervals)", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("  variant", "task"):
        table.add_column(title)
    for title in ("perplexity", "mean KL", "quality", "same 1st", "answers right"):
        table.add_column(title, justify="right")
    for one in quality:
        for task in one.tasks:
            right = f"{task.right} of {task.asked}" if task.asked else "–"
            table.add_row(
                f"  {one.variant}",
                task.task,
                perplexity_text(task),
                f"{task.mean_kl:.4f} [{task.kl_low:.4f}, {task.kl_high:.4f}]",
                f"{task.quality_ratio:.3f}",
                f"{task.agreement:.1%}",
                right,
            )
    console.print(table)


def perplexity_text(task: TaskQuality) -> str:
    """The perplexity with its interval, unless the text was too short for one that says much."""
    if task.perplexity_high > WIDE * task.perplexity:
        return f"{task.perplexity:.2f} (too little text)"
    return f"{task.perplexity:.2f} [{task.perplexity_low:.2f}, {task.perplexity_high:.2f}]"


def _print_head(profile: Profile, console: Console) -> None:
    device = profile.device
    when = datetime.datetime.fromtimestamp(profile.started_s).astimezone()
    state = profile.mode if profile.finished_s is not None else f"{profile.mode}, unfinished"
    console.print(
        f"[bold]{escape(profile.model_id)}[/bold] on {escape(device.cpu)}, {device.cores} cores, "
        f"{device.memory_bytes / 2**30:.1f} GiB  [dim]{when:%Y-%m-%d %H:%M}, {state}[/dim]",
        highlight=False,
    )
    bands = [
        f"{mark(one)}{one.value / 1e9:.1f} GB/s with {one.threads} thread(s)"
        for one in profile.all(Kind.BANDWIDTH)
    ]
    if bands:
        console.print(f"memory reads {', '.join(bands)}", highlight=False)


def _thread_counts(profile: Profile) -> list[int]:
    counts: list[int] = []
    for one in profile.all(Kind.DECODE):
        if one.threads not in counts and not one.detail:
            counts.append(one.threads)
    return counts


def _speeds(profile: Profile, model: ModelSpec, threads: int) -> Table:
    """One row for each variant: load, memory, tokens/s and first token at each length."""
    sizes = sorted({one.tokens for one in profile.all(Kind.DECODE) if not one.detail})
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  variant", no_wrap=True)
    table.add_column("load\ns", justify="right")
    table.add_column("cold\ns", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    for size in sizes:
        table.add_column(f"tok/s\n@{size}", justify="right")
    for size in sizes:
        table.add_column(f"1st s\n@{size}", justify="right")
    for variant in model.variants:
        name = variant.name
        if not any(m.threads == threads for m in profile.all(Kind.DECODE, name)):
            continue
        row = [
            f"  {name}",
            _seconds(profile.find(Kind.LOAD_WARM, name, threads)),
            _seconds(profile.find(Kind.LOAD_COLD, name, threads)),
            _size(profile.find(Kind.RESIDENT, name, threads)),
        ]
        row += [_rate(profile.find(Kind.DECODE, name, threads, size)) for size in sizes]
        row += [_seconds(profile.find(Kind.TTFT, name, threads, size)) for size in sizes]
        table.add_row(*row)
    return table


def _extras(profile: Profile, model: ModelSpec) -> Table:
    """Drafting, hand-over, disk, heat and a stolen core: what a full profile has beside speeds."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for variant in model.variants:
        name = variant.name
        found = [
            f"{one.detail} ×{mark(one)}{one.value:.2f}"
            for one in profile.all(Kind.SPECULATION, name)
        ]
        if found:
            table.add_row(f"  {name} with n-gram drafts", ", ".join(found))
    for one in profile.all(Kind.HANDOVER):
        table.add_row(f"  {one.variant} → {one.detail}", f"{mark(one)}{one.value * 1e3:.0f} ms")
    for kind, title in ((Kind.OFFLOAD, "KV to disk"), (Kind.RESTORE, "KV from disk")):
        rates = [one.value for one in profile.all(kind)]
        if rates:
            table.add_row(f"  {title}", f"{sorted(rates)[len(rates) // 2] / 1e6:.0f} MB/s")
    for one in profile.all(Kind.DECODE):
        alone = profile.find(Kind.DECODE, one.variant, one.threads, one.tokens)
        if one.detail == STOLEN and alone is not None:
            ratio = alone.value / one.value
            table.add_row(
                f"  {one.variant}, {one.threads} thread(s), a core stolen",
                f"{mark(one)}{ratio:.0%} of the speed",
            )
    for one in profile.all(Kind.TEMPERATURE):
        if one.threads == max(m.threads for m in profile.all(Kind.TEMPERATURE)):
            table.add_row(f"  after {one.variant}", f"{one.value:.0f} °C")
    return table


def _print_notes(profile: Profile, console: Console) -> None:
    doubtful = [one for one in profile.measurements if one.disturbed]
    if doubtful:
        console.print(
            f"  {DISTURBED} disturbed: other programs had the core, or the board was hot; the time "
            f"without a core is taken out ({len(doubtful)} of {len(profile.measurements)})",
            style="dim",
            highlight=False,
        )
    by_reason: dict[str, list[str]] = {}
    for text in profile.left_out:
        what, _, reason = text.partition(": ")
        by_reason.setdefault(reason, []).append(what)
    for reason, left in by_reason.items():
        names = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        console.print(f"  left out: {escape(names)}: {escape(reason)}", highlight=False)


def mark(one: Measurement) -> str:
    """What stands before a doubtful figure."""
    return DISTURBED if one.disturbed else ""


def _seconds(one: Measurement | None) -> str:
    if one is None:
        return "–"
    return f"{mark(one)}{one.value:.2f}" if one.value < 10 else f"{mark(one)}{one.value:.1f}"


def _rate(one: Measurement | None) -> str:
    return "–" if one is None else f"{mark(one)}{1 / one.value:.1f}"


def _size(one: Measurement | None) -> str:
    return "–" if one is None else f"{mark(one)}{readable(int(one.value))}"
