"""Answers that are held to a form keep it through every change of what serves them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rig import running

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec
from trimtab.domain.tools import ToolFormat
from trimtab.errors import RequestError
from trimtab.policy.compiled import Carry, Handover
from trimtab.workers.protocol import Guide, Sampling, Tool


def numbers(count: int) -> Guide:
    """So many small numbers."""
    item = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {"type": "array", "items": item, "minItems": count, "maxItems": count}
    return Guide(schema=json.dumps(schema))


WAIT = Tool("wait", '{"type":"object"}', field="tools[0].function.parameters")
DRAWN = Sampling(temperature=1.0, seed=5)
SLOW = policy(
    knobs=replace(policy().knobs, pace_min_ratio=0.1, pace_max_ratio=0.1),
    handover=Handover(Carry.KV, Carry.KV, 60.0),
)


@pytest.mark.parametrize("decoder", ["generator", "kv"])
async def test_after_a_crash_the_answer_is_what_it_would_have_been(
    tiny: ModelSpec, decoder: str
) -> None:
    async with running(tiny, decoder=decoder) as rig:
        wish = {"guide": numbers(70), "sampling": DRAWN, "max_tokens": 900}
        expected = await rig.read(await rig.ask(**wish))
        stream = await rig.ask(**wish)
        answer = await rig.read(stream, tokens=60)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert answer.text == expected.text
        assert len(json.loads(answer.text)) == 70
        assert stream.disclosure.resumed == 1


async def test_an_answer_that_crosses_to_another_variant_keeps_its_form(tiny: ModelSpec) -> None:
    async with running(tiny, SLOW) as rig:
        stream = await rig.ask(guide=numbers(300), sampling=DRAWN, max_tokens=1900)
        answer = await rig.read(stream, tokens=20)
        rig.pin("int4")
        await rig.read(stream, answer)

        assert len(json.loads(answer.text)) == 300
        assert stream.disclosure.variants == ("fp32", "int4")


async def test_a_schema_that_cant_be_enforced_is_refused_before_it_waits(tiny: ModelSpec) -> None:
    async with running(tiny) as rig:
        with pytest.raises(RequestError, match="uniqueItems") as caught:
            await rig.ask(guide=Guide(schema='{"uniqueItems": true}', field="format"))

        assert caught.value.param == "format"
        assert caught.value.status == 400
        assert not rig.daemon.streams.busy()


async def test_tools_are_refused_where_the_model_takes_none(tiny: ModelSpec) -> None:
    wish = {"guide": Guide(tools=(WAIT,)), "tools": [{"type": "function"}]}
    async with running(tiny) as rig:
        with pytest.raises(RequestError, match="takes no tools") as caught:
            await rig.ask(**wish)

        assert caught.value.param == "tools"


async def test_tools_are_called_in_the_models_way(tiny: ModelSpec) -> None:
    model = replace(tiny, tool_format=ToolFormat.MISTRAL)
    guide = Guide(tools=(WAIT,), calls_least=1)
    async with running(model) as rig:
        stream = await rig.ask(guide=guide, tools=[{"type": "function"}], sampling=DRAWN)
        answer = await rig.read(stream)

        assert answer.text.startswith('[TOOL_CALLS] [{"name": "wait", "arguments": {')
