"""What the documents say about the API is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from api_fakes import Gateway
from trimtab.api.openapi import OPERATIONS
from trimtab.config import ApiConfig, TcpConfig
from trimtab.serving.control import SignalView

DOCS = Path(__file__).parents[2] / "docs"


def test_every_path_in_the_document_is_answered() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    known = {re.sub(r"\{.*?\}", "", operation.split(" ")[1]) for operation in OPERATIONS}
    named = re.findall(r"`(?:GET |POST |PUT |DELETE )?(/(?:v1|api|trimtab)[^`?]*)", text)

    assert len(named) > 25
    for path in named:
        assert re.sub(r"(?<=/)(?:ID|N|NAME)$", "", path) in known, path


def test_every_operation_but_the_plain_ones_is_in_the_document() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for operation in OPERATIONS:
        path = operation.split(" ")[1]
        for field, shown in (("{number}", "N"), ("{model}", "ID"), ("{name}", "NAME")):
            path = path.replace(field, shown)

        assert path in text, operation


def test_defaults_named_in_the_document_are_the_defaults() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")

    assert f"port = {TcpConfig().port}" in text
    for key in re.findall(r"`api\.([a-z_]+)`", text):
        assert key in {info.alias or name for name, info in ApiConfig.model_fields.items()}


async def test_every_metric_of_the_dashboard_is_exposed(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    gateway.metrics.decision_made("down")
    gateway.control.snapshot.append(SignalView("temperature.max", 60, "celsius", "good", "", 0.1))
    exposed = gateway.metrics.exposition().decode()
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    wanted = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:trimtab|gen_ai)_[a-z_]+", target["expr"])
    }

    assert len(wanted) > 12
    for name in wanted - {"gen_ai_operation_name"}:
        assert f"\n{name}" in exposed, name
