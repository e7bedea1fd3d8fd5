"""What a model's chat template says about tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tool_models import TEMPLATES, tiny_with_tools
from trimtab.catalog.chat_template import read_template
from trimtab.catalog.load import load_catalog
from trimtab.domain.tools import ToolFormat, tool_format_of


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_a_models_format_is_known_from_its_template(
    tmp_path: Path, tool_format: ToolFormat
) -> None:
    tiny_with_tools(tmp_path, tool_format)
    catalog = load_catalog([tmp_path])

    assert catalog.damaged == ()
    assert catalog.model("tiny").tool_format is tool_format


def test_a_template_without_tools_has_no_format() -> None:
    tiny = Path(__file__).parent.parent / "tiny"

    assert load_catalog([tiny]).model("tiny").tool_format is None


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{{ messages }} your toolset: <tool_call>",
        "{{ tools }} as you like",
        "{% if tools %}<tool_call>\\n<function=name><parameter=x>{% endif %}",
        "{% if tools %}<tool_call>name<arg_key>x</arg_key>{% endif %}",
        "{% if tools %}[TOOL_CALLS]name[CALL_ID]id[ARGS]{}{% endif %}",
        '{% if tools %}{"type": "function", "parameters": {}}{% endif %}',
    ],
)
def test_a_way_of_calling_that_we_dont_know_is_no_format(template: str) -> None:
    assert tool_format_of(template) is None


def test_older_folders_have_their_template_in_the_tokenizers_configuration(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    named = [
        {"name": "default", "template": "plain"},
        {"name": "rag", "template": TEMPLATES[ToolFormat.HERMES]},
    ]
    found = []
    for value in ("one", named, None, 5, [{"name": "other", "template": "x"}]):
        config.write_text(json.dumps({"chat_template": value, "eos_token": {"content": "x"}}))
        found.append(read_template(tmp_path))
    config.write_text("{")
    damaged = read_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("newer")

    assert found == ["one", "plain", "", "", ""]
    assert damaged == ""
    assert read_template(tmp_path) == "newer"


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert read_template(tmp_path) == ""
