"""Schemas of answers that have no type of their own in the program."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_LOOSE: Final = {"type": "object"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


DISCLOSURE: Final = _object(
    variant=_TEXT,
    context=_COUNT,
    policy_revision=_TEXT,
    switches=_COUNT,
    variants=_list(_TEXT),
    resumed=_COUNT,
    shifts=_COUNT,
    dropped_tokens=_COUNT,
)
USAGE: Final = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
COMPLETION: Final = _object(
    id=_TEXT,
    object={"enum": ["chat.completion", "text_completion"]},
    created=_COUNT,
    model=_TEXT,
    choices=_list(_LOOSE),
    usage=USAGE,
    trimtab=DISCLOSURE,
)
MODEL: Final = _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT)
MODELS: Final = _object(object={"const": "list"}, data=_list(MODEL))
OLLAMA_ANSWER: Final = _object(
    model=_TEXT,
    created_at=_TEXT,
    done={"type": "boolean"},
    done_reason=_TEXT,
    prompt_eval_count=_COUNT,
    eval_count=_COUNT,
    trimtab=DISCLOSURE,
)
OLLAMA_MODELS: Final = _object(models=_list(_LOOSE))
OLLAMA_MODEL: Final = _object(details=_LOOSE, capabilities=_list(_TEXT), model_info=_LOOSE)
VERSION: Final = _object(version=_TEXT)
HEALTH: Final = _object(status={"const": "ok"})
READY: Final = _object(ready={"type": "boolean"}, state=_TEXT, reason=_TEXT)
SIGNALS: Final = _object(signals=_list({"$ref": "#/components/schemas/SignalView"}))
POINTS: Final = _object(points=_list(_LOOSE))
RECORD: Final = _object(id=_COUNT, wall_s={"type": "number"}, direction=_TEXT, trigger=_LOOSE)
RECORDS: Final = _object(decisions=_list(RECORD))
POLICIES: Final = _object(policies=_list(_LOOSE))
POLICY_VALUES: Final = _object(name=_TEXT, revision=_TEXT, values=_list(_LOOSE))
TRIAL: Final = _object(trial={"type": ["object", "null"]})
PINNED: Final = _object(pinned=_LOOSE)
PAUSED: Final = _object(paused={"type": "boolean"})
PLAIN_OBJECT: Final = _LOOSE

OPENAI_ERROR: Final = _object(
    error=_object(
        message=_TEXT,
        type=_TEXT,
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    )
)
OLLAMA_ERROR: Final = _object(error=_TEXT, code=_TEXT)
PROBLEM: Final = _object(type=_TEXT, title=_TEXT, status=_COUNT, detail=_TEXT, code=_TEXT)
