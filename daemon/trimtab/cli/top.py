"""`trimtab top`: the whole daemon on one live screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from trimtab.cli.settings import json_option, loaded, print_json
from trimtab.config.load import Loaded

if TYPE_CHECKING:
    from rich.console import Console

    from trimtab.cli.top_keys import Key
    from trimtab.cli.top_scene import Scene
    from trimtab.cli.top_view import Past

_PAGE: Final = 5
_REDRAW_S: Final = 1.0
_SECOND_LOOK_S: Final = 0.5


@click.command()
@click.option("--once", is_flag=True, help="Print once and end, as in a pipe.")
@json_option
@click.pass_context
def top(ctx: click.Context, once: bool, as_json: bool) -> None:
    """Show everything live: the triangle, signals, points, streams and decisions.

    Keys: q quits, p pauses the view, arrows or j and k scroll the decisions, t hides or shows the
    triangle. In a pipe and on a terminal that can't move its cursor it prints once and ends.
    """
    from rich.console import Console

    settings = loaded(ctx)
    console = Console(highlight=False)
    if as_json:
        _print_json(settings)
    elif once or not console.is_terminal or console.is_dumb_terminal:
        _print_once(settings, console)
    else:
        _live(settings, console)


def _print_json(settings: Loaded) -> None:
    import msgspec

    from trimtab.api.client import connect
    from trimtab.cli.top_feed import ask, policy_in_force, scene_of
    from trimtab.cli.top_triangle import where
    from trimtab.serving.control import PolicyView

    with connect(settings) as client:
        answers = ask(client)
        view = msgspec.convert(answers.status["policy"], PolicyView)
        scene = scene_of(answers, policy_in_force(client, view), 0.0)
    told = msgspec.to_builtins(answers)
    print_json({"triangle": where(scene), **told})


def _print_once(settings: Loaded, console: Console) -> None:
    import msgspec

    from trimtab.api.client import connect
    from trimtab.cli.top_feed import ask, policy_in_force, scene_of
    from trimtab.cli.top_view import Past, snapshot
    from trimtab.serving.control import PolicyView

    past = Past()
    with connect(settings) as client:
        answers = ask(client)
        view = msgspec.convert(answers.status["policy"], PolicyView)
        policy = policy_in_force(client, view)
        past.add(scene_of(answers, policy, 1.0))
        time.sleep(_SECOND_LOOK_S)  # rates need a second look
        scene = scene_of(ask(client), policy, 2.0)
    past.add(scene)
    for line in snapshot(scene, past, ascii_only=_ascii_only(console)):
        console.print(line, soft_wrap=True)


def _ascii_only(console: Console) -> bool:
    return console.encoding.lower().replace("-", "") != "utf8"


@dataclass(frozen=True, slots=True)
class Choices:
    """What the person at the keys has chosen.

    Attributes:
        scroll: How many of the newest decisions are skipped.
        frozen: The scene that stands still while the view is paused.
    """

    triangle: bool = True
    scroll: int = 0
    frozen: Scene | None = None
    quit: bool = False


def chosen(before: Choices, key: Key, scene: Scene) -> Choices:
    """The choices after a key.

    Args:
        before: The choices before it.
        key: What was pressed.
        scene: What is on the screen.
    """
    from trimtab.cli.top_keys import Key

    moves = {
        Key.OLDER: 1,
        Key.NEWER: -1,
        Key.PAGE_OLDER: _PAGE,
        Key.PAGE_NEWER: -_PAGE,
        Key.NEWEST: -before.scroll,
    }
    match key:
        case Key.QUIT:
            return replace(before, quit=True)
        case Key.PAUSE:
            return replace(before, frozen=None if before.frozen is not None else scene)
        case Key.TRIANGLE:
            return replace(before, triangle=not before.triangle)
        case _:
            oldest = max(0, len(scene.decisions) - 1)
            return replace(before, scroll=min(oldest, max(0, before.scroll + moves[key])))


def _live(settings: Loaded, console: Console) -> None:
    """The live screen, until q or Ctrl-C."""
    from rich.live import Live

    from trimtab.cli.top_feed import Feed
    from trimtab.cli.top_keys import Keyboard
    from trimtab.cli.top_view import Past
    from trimtab.runtime.clock import SystemClock

    clock, past, choices = SystemClock(), Past(), Choices()
    with Keyboard() as keyboard:
        feed = Feed(settings, clock, keyboard.nudge)
        feed.start()
        try:
            with Live(console=console, auto_refresh=False, screen=True) as live:
                while not choices.quit:
                    scene = choices.frozen or feed.scene
                    past.add(scene)
                    _draw(live.update, console, scene, past, choices, clock.monotonic_s())
                    for key in keyboard.wait(_REDRAW_S):
                        choices = chosen(choices, key, scene)
        except KeyboardInterrupt:
            pass
        finally:
            feed.stop()


def _draw(
    update: Callable[..., None],
    console: Console,
    scene: Scene,
    past: Past,
    choices: Choices,
    now_s: float,
) -> None:
    """Draw the screen in the size that the terminal has now."""
    from rich.text import Text

    from trimtab.cli.top_view import View, picture

    width, height = console.size
    view = View(
        width=width,
        height=height,
        now_s=now_s,
        paused=choices.frozen is not None,
        triangle=choices.triangle,
        scroll=choices.scroll,
        ascii_only=_ascii_only(console),
    )
    lines = picture(scene, past, view)
    update(Text("\n", no_wrap=True, overflow="crop", end="").join(lines), refresh=True)
