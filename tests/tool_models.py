"""The tiny model with chat templates that take tools, in the formats of the common models.

The templates are ours and short; what matters is what they have in common with the real ones: how
they show tools, and the text with which they have them called.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from trimtab.domain.tools import ToolFormat

TINY = Path(__file__).parent / "tiny"

_HERMES = """\
{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- if message.tool_calls %}{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}
"""
_LLAMA = """\
{{- 'Environment: ipython\\n' }}
{%- if tools %}{{ 'Answer with {"name": name, "parameters": values}.\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{%- endfor %}{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{{- 'assistant: {"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
{{- message.tool_calls[0].function.arguments | tojson }}{{ '}\\n' }}
{%- elif message.role == 'tool' %}{{ 'ipython: ' + message.content + '\\n' }}
{%- else %}{{ message.role + ': ' + message.content + '\\n' }}{%- endif %}
{%- endfor %}{{ 'assistant: ' }}
"""
_MISTRAL = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}{{ '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{%- endif %}
{{- call.function | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}{{ ']' }}
{%- else %}{{ '[' + message.role + ']' + message.content }}{%- endif %}
{%- endfor %}
"""
_MISTRAL_ARGS = """\
{%- if tools %}{{ '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}{{ call.function.arguments | tojson }}
{%- endfor %}
{%- else %}{{ '[' + message.role + ']' + message.content }}{%- endif %}
{%- endfor %}
"""
TEMPLATES = {
    ToolFormat.HERMES: _HERMES,
    ToolFormat.LLAMA: _LLAMA,
    ToolFormat.MISTRAL: _MISTRAL,
    ToolFormat.MISTRAL_ARGS: _MISTRAL_ARGS,
}


def tiny_with_tools(folder: Path, tool_format: ToolFormat) -> Path:
    """A copy of the tiny model below ``folder`` whose template takes tools; returns its folder."""
    model = folder / "tiny"
    shutil.copytree(TINY, model)
    template = TEMPLATES[tool_format].encode()
    for variant in ("fp32", "int8", "int4"):
        (model / variant / "chat_template.jinja").write_bytes(template)
    manifest = model / "model.yaml"
    size = rf"\g<1>{len(template)}"
    text = re.sub(r"(chat_template\.jinja:\n +bytes: )\d+", size, manifest.read_text())
    manifest.write_text(text)
    return model
