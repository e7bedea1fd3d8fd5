"""`trimtab config`: check and show the configuration."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from trimtab.cli.settings import json_option, loaded, print_json, styled
from trimtab.config.fields import FieldSpec, fields
from trimtab.config.load import Loaded
from trimtab.config.reference import reference
from trimtab.config.schema import Section
from trimtab.policy.units import format_quantity


@click.group()
def config() -> None:
    """Check and show the configuration: flag, then environment, then file, then default."""


@config.command()
@json_option
@click.pass_context
def check(ctx: click.Context, as_json: bool) -> None:
    """Say whether the configuration is right; faults are named with file, line and key."""
    settings = loaded(ctx)
    if as_json:
        print_json({"file": _file(settings), "warnings": settings.warnings, "valid": True})
        return
    for warning in settings.warnings:
        click.echo(f"warning: {warning}")
    click.echo(f"{_file(settings) or 'No file is there'}: the configuration is right.")


@config.command()
@json_option
@click.pass_context
def show(ctx: click.Context, as_json: bool) -> None:
    """Print every value that is in force, and where it came from."""
    settings = loaded(ctx)
    rows = [(field, _value(settings, field), settings.origins[field.path]) for field in fields()]
    if as_json:
        print_json(
            {
                field.path: {"value": value, "origin": origin.kind, "where": origin.where}
                for field, value, origin in rows
            }
        )
        return
    width = max(len(field.path) for field, _, _ in rows)
    for field, value, origin in rows:
        text = f"{field.path:<{width}}  {_shown(field, value)}"
        click.echo(f"{text:<{width + 34}}  {styled(f'# {origin}', dim=True)}")


@config.command("reference")
def reference_command() -> None:
    """Print the table of all keys in Markdown, as in docs/configuration.md."""
    click.echo(reference())


def _file(settings: Loaded) -> str | None:
    return str(settings.file) if settings.file else None


def _value(settings: Loaded, field: FieldSpec) -> Any:
    value = attrgetter(field.attribute)(settings.config)
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Section):
        return value.model_dump(mode="json", by_alias=True)
    return value


def _shown(field: FieldSpec, value: Any) -> str:
    if value is None:
        return "(unset)"
    if field.path.endswith("_mode"):
        return f"{value:04o}"
    if field.unit:
        return format_quantity(value, field.unit)
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return str(value)
