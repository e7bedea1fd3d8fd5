"""Policies over the sockets: the trial's report for all, everything else for the owner."""

from __future__ import annotations

from api_fakes import Gateway

V1 = "/trimtab/v1"


async def test_policies_are_listed_and_shown(gateway: Gateway) -> None:
    async with gateway.client(gateway.control_socket) as client:
        library = await client.get(f"{V1}/policies")
        one = await client.get(f"{V1}/policies/balanced")
        orders = await client.get(f"{V1}/policy/values")
        none = await client.get(f"{V1}/policies/nowhere")
    async with gateway.client(gateway.inference_socket) as client:
        trial = await client.get(f"{V1}/trial")
        reads = await client.get(f"{V1}/policy/values")

    assert library.json()["policies"][0]["name"] == "balanced"
    assert one.json() == {"name": "balanced", "revision": "abc123def456", "values": []}
    assert orders.json() == reads.json() == one.json()
    assert none.status_code == 422
    assert none.json()["code"] == "policy_invalid"
    assert trial.json() == {"trial": None}


async def test_a_policy_is_checked_used_and_tried_on_the_control_socket_only(
    gateway: Gateway,
) -> None:
    async with gateway.client(gateway.control_socket) as client:
        checked = await client.post(f"{V1}/policy/check", json={"text": "version: 1"})
        used = await client.put(f"{V1}/policy", json={"policy": "night"})
        begun = await client.put(f"{V1}/trial", json={"text": "version: 1", "for": "5m"})
        ended = await client.delete(f"{V1}/trial")
    async with gateway.client(gateway.inference_socket) as client:
        refused = [
            await client.get(f"{V1}/policies"),
            await client.post(f"{V1}/policy/check", json={"text": ""}),
            await client.put(f"{V1}/policy", json={"policy": "night"}),
            await client.put(f"{V1}/trial", json={"text": ""}),
        ]

    assert checked.json()["sound"] is True
    assert used.json()["name"] == "night"
    assert begun.json()["trial"]["running"] is True
    assert ended.json()["trial"]["running"] is False
    assert all(answer.status_code in {404, 405} for answer in refused)
    assert gateway.control.orders[0][:2] == ("use_policy", "night")
    assert gateway.control.orders[1][:3] == ("begin_trial", "version: 1", 300.0)


async def test_a_bad_body_names_its_field(gateway: Gateway) -> None:
    async with gateway.client(gateway.control_socket) as client:
        unknown = await client.put(f"{V1}/policy", json={"policy": "night", "path": "/etc/x"})
        duration = await client.put(f"{V1}/trial", json={"text": "", "for": "soon"})
        large = await client.post(f"{V1}/policy/check", json={"text": "x" * 600_000})

    assert unknown.status_code == 400
    assert "path" in unknown.json()["detail"]
    assert duration.status_code == 400
    assert "soon" in duration.json()["detail"]
    assert large.status_code == 413
