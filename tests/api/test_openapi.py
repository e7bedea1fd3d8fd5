"""The OpenAPI document: it knows every route, and what it says is what happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api_fakes import Gateway
from trimtab.api.openapi import OPERATIONS


async def documents(gateway: Gateway) -> list[dict[str, Any]]:
    found = []
    for socket in (gateway.inference_socket, gateway.control_socket):
        async with gateway.client(socket) as client:
            found.append((await client.get("/openapi.json")).json())
    return found


def named(document: dict[str, Any]) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }


async def test_both_documents_together_describe_every_operation(gateway: Gateway) -> None:
    inference, control = await documents(gateway)

    assert named(inference) | named(control) == set(OPERATIONS)
    assert "PUT /trimtab/v1/pin" not in named(inference)
    assert "POST /v1/chat/completions" not in named(control)


async def test_every_reference_leads_somewhere(gateway: Gateway) -> None:
    for document in await documents(gateway):
        schemas = document["components"]["schemas"]
        references = [
            part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]
        ]

        assert references
        assert set(references) <= set(schemas)


async def test_a_body_lists_its_fields(gateway: Gateway) -> None:
    inference, _ = await documents(gateway)
    chat = inference["components"]["schemas"]["ChatBody"]

    assert set(chat["required"]) == {"model", "messages"}
    assert {"temperature", "stop", "stream", "logprobs", "trimtab"} <= set(chat["properties"])


async def test_every_read_answers_with_the_fields_that_are_promised(gateway: Gateway) -> None:
    inference, _ = await documents(gateway)
    async with gateway.client() as client:
        for path, methods in inference["paths"].items():
            schema = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
            wanted = schema.get("application/json", {}).get("schema", {}).get("required", [])
            if wanted and "{" not in path:
                answer = await client.get(path)

                assert set(wanted) <= set(answer.json()), path


async def test_the_status_can_be_followed(gateway: Gateway) -> None:
    async with (
        gateway.client() as client,
        client.stream("GET", "/trimtab/v1/status/stream?every=0.1") as answer,
    ):
        lines = answer.aiter_lines()
        came = [await anext(lines) for _ in range(6)]

    assert came[0] == came[3] == "event: status"
    assert json.loads(came[1].removeprefix("data: "))["state"] == "ready"


@pytest.mark.parametrize("every", ["0", "nan", "often", "1e9"])
async def test_an_interval_that_makes_no_sense_is_refused(gateway: Gateway, every: str) -> None:
    async with gateway.client() as client:
        answer = await client.get("/trimtab/v1/status/stream", params={"every": every})

    assert answer.status_code == 400
    assert answer.json()["param"] == "every"
