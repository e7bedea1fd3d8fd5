"""Plain values → schema, with every fault in plain words and at its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin

from pydantic import Tag, ValidationError
from pydantic_core import ErrorDetails

from trimtab.policy.document import (
    Entry,
    Listing,
    Mapping,
    Node,
    PathParts,
    Position,
    Scalar,
    dotted,
    find,
    get,
    plain,
    without,
)
from trimtab.policy.fields import Part
from trimtab.policy.problems import Problem, Severity, nearest
from trimtab.policy.schema import PolicyFile
from trimtab.policy.units import show

_ROUNDS: Final = 4
StandIn: TypeAlias = str | int | list[str]

_PLACEHOLDERS: Final[dict[str, StandIn]] = {
    "version": 1,
    "name": "unnamed",
    "protect": ["latency", "memory"],
}


P = TypeVar("P", bound=Part)


def validate(document: Mapping) -> tuple[PolicyFile | None, Mapping, set[PathParts], list[Problem]]:
    """Hold a policy against its schema; see `hold_against`."""
    return hold_against(document, PolicyFile, _PLACEHOLDERS)


def hold_against(
    document: Mapping, part: type[P], stand_ins: AbstractMapping[str, StandIn]
) -> tuple[P | None, Mapping, set[PathParts], list[Problem]]:
    """Hold a document against a schema.

    Args:
        document: What was read.
        part: The schema.
        stand_ins: Values for the top-level fields that must exist, in case they are at fault.

    What is at fault is left out and the rest validated again, so that checks of meaning can go on
    and everything is reported at once.

    Returns:
        The schema's value (None if too little is left), the document that it was made from, the
        paths that were left out, and the problems. The value is the policy's only if there are no
        problems.
    """
    problems: list[Problem] = []
    removed: set[PathParts] = set()
    for _ in range(_ROUNDS):
        try:
            return part.model_validate(plain(document)), document, removed, problems
        except ValidationError as error:
            details = error.errors(include_url=False)
        problems += _problems(document, details, part)
        document, gone = _prune(document, details, stand_ins)
        removed |= gone
    return None, document, removed, problems


def _problems(
    document: Mapping, details: list[ErrorDetails], part: type[Part]
) -> Iterator[Problem]:
    for detail in details:
        at, path = find(document, detail["loc"])
        if detail["type"] == "extra_forbidden":
            at = _name_position(document, detail["loc"]) or at
        message, suggestion = _explain(detail, part)
        yield Problem(
            Severity.ERROR, at.file, at.line, at.column, dotted(path), message, suggestion
        )


def _name_position(document: Mapping, loc: PathParts) -> Position | None:
    """Where the name of a field stands."""
    existing = _existing(document, loc)
    parent = get(document, existing[:-1])
    last = existing[-1] if existing else None
    if isinstance(parent, Mapping) and isinstance(last, str) and last in parent.entries:
        return parent.entries[last].name_at
    return None


def _existing(document: Node, loc: PathParts) -> PathParts:
    """The steps of a pydantic path that exist in the document, in its own numbering."""
    kept: PathParts = ()
    for step in loc:
        if get(document, (*kept, step)) is not None:
            kept = (*kept, step)
    return kept


def _prune(
    document: Mapping, details: list[ErrorDetails], stand_ins: AbstractMapping[str, StandIn]
) -> tuple[Mapping, set[PathParts]]:
    """Leave out what is at fault; the top-level fields that must exist get a stand-in."""
    faulty = {_existing(document, detail["loc"]) for detail in details}
    removed = {find(document, path)[1] for path in faulty if path}
    pruned: Node = document
    # Later items first, so that the numbers of earlier ones stay true.
    for path in sorted(faulty, key=_sort_key, reverse=True):
        pruned = without(pruned, path)
    assert isinstance(pruned, Mapping)
    missing = [name for name in stand_ins if name not in pruned.entries]
    entries = dict(pruned.entries)
    for name in missing:
        entries[name] = Entry(document.at, _stand_in(stand_ins[name], document.at))
        removed.add((name,))
    return Mapping(entries, document.at), removed


def _sort_key(path: PathParts) -> tuple[tuple[int, str], ...]:
    return tuple((step, "") if isinstance(step, int) else (-1, step) for step in path)


def _stand_in(value: StandIn, at: Position) -> Node:
    if isinstance(value, list):
        return Listing(tuple(Scalar(item, item, at) for item in value), at)
    return Scalar(value, str(value), at)


def _explain(detail: ErrorDetails, part: type[Part]) -> tuple[str, str]:
    """What is wrong and what to write instead."""
    kind = detail["type"]
    context: dict[str, Any] = detail.get("ctx", {})
    if kind == "quantity":
        return str(context["text"]), str(context["suggestion"])
    if kind == "extra_forbidden":
        return _unknown_field(detail["loc"], part)
    if kind == "missing":
        return _missing_field(detail["loc"])
    explain = _EXPLANATIONS.get(kind)
    found = detail["input"]
    if found is None:
        return "nothing stands here; give a value or leave the field out", ""
    if explain is None:
        return f"found {show(found)}: {detail['msg']}", ""
    return explain(found, context)


def _unknown_field(loc: PathParts, part: type[Part]) -> tuple[str, str]:
    name = str(loc[-1])
    allowed = _fields_at(loc[:-1], part)
    return f"unknown field {name!r}; allowed are {', '.join(allowed)}", nearest(name, allowed)


def _missing_field(loc: PathParts) -> tuple[str, str]:
    name = str(loc[-1])
    suggestion = {"version": "version: 1", "protect": "protect: [latency, memory]"}.get(name, "")
    return f"the field {name!r} is missing", suggestion


def _not_allowed(found: object, context: dict[str, Any]) -> tuple[str, str]:
    expected = str(context["expected"]).replace("'", "").replace("True", "true")
    allowed = expected.replace(" or ", ", ").split(", ")
    return f"found {show(found)}; allowed: {', '.join(allowed)}", nearest(str(found), allowed)


def _wanted(what: str) -> Callable[[object, dict[str, Any]], tuple[str, str]]:
    def explain(found: object, context: dict[str, Any]) -> tuple[str, str]:
        return f"found {show(found)}; {what} is wanted", ""

    return explain


def _bound(words: str, key: str) -> Callable[[object, dict[str, Any]], tuple[str, str]]:
    def explain(found: object, context: dict[str, Any]) -> tuple[str, str]:
        return f"found {show(found)}; it must be {words} {context[key]:g}", ""

    return explain


def _pattern(found: object, context: dict[str, Any]) -> tuple[str, str]:
    return f"found {show(found)}; {_PATTERNS.get(context['pattern'], 'that is not allowed')}", ""


def _list_length(found: object, context: dict[str, Any]) -> tuple[str, str]:
    least, most = context.get("min_length"), context.get("max_length")
    wanted = f"at least {least}" if least is not None else f"at most {most}"
    return f"this list has {context['actual_length']} items; {wanted} are wanted", ""


def _text_length(found: object, context: dict[str, Any]) -> tuple[str, str]:
    if "min_length" in context:
        return "the text is empty", ""
    return f"the text is longer than {context['max_length']} characters", ""


_PATTERNS: Final[dict[str, str]] = {
    r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$": (
        "a name has up to 64 letters, digits, '.', '_', ':' or '-', and starts with one of the "
        "first two"
    ),
    r"^(off|ngram|draft:.{1,100})$": "allowed: off, ngram, draft:VARIANT",
    r"^([01]\d|2[0-3]):[0-5]\d$": "a time of the day is wanted, such as 22:30",
}

_EXPLANATIONS: Final[dict[str, Callable[[object, dict[str, Any]], tuple[str, str]]]] = {
    "literal_error": _not_allowed,
    "condition": _wanted("a mapping with one of signal, all, any, not, between"),
    "string_type": _wanted("text"),
    "int_type": _wanted("a whole number"),
    "int_from_float": _wanted("a whole number"),
    "float_type": _wanted("a number"),
    "bool_type": _wanted("true or false"),
    "finite_number": _wanted("a finite number"),
    "list_type": _wanted("a list"),
    "dict_type": _wanted("a mapping"),
    "model_type": _wanted("a mapping"),
    "model_attributes_type": _wanted("a mapping"),
    "string_pattern_mismatch": _pattern,
    "string_too_short": _text_length,
    "string_too_long": _text_length,
    "too_short": _list_length,
    "too_long": _list_length,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
}


def _fields_at(loc: PathParts, part: type[Part]) -> list[str]:
    """Names of the fields that the schema has at a path."""
    here: list[Any] = [part]
    for step in loc:
        here = [inner for annotation in here for inner in _descend(annotation, step)]
    parts = [inner for annotation in here for inner in parts_of(annotation)]
    return list(dict.fromkeys(name for inner in parts for name in field_names(inner)))


def field_names(part: type[Part]) -> dict[str, str]:
    """The names of a part's fields as files have them → as Python has them."""
    return {info.alias or name: name for name, info in part.model_fields.items()}


def _descend(annotation: Any, step: str | int) -> Iterator[Any]:
    """The annotations one step further: a field's, a union member's, a list's items'."""
    if isinstance(step, str) and step.startswith("<"):
        yield from (inner for tag, inner in _members(annotation) if tag == step)
        return
    if isinstance(step, int):
        yield from (
            get_args(inner)[0] for _, inner in _members(annotation) if get_origin(inner) is list
        )
        return
    for part in parts_of(annotation):
        name = field_names(part).get(step)
        if name is not None:
            yield part.model_fields[name].annotation


def parts_of(annotation: Any) -> list[type[Part]]:
    """The parts that a field of this type may hold."""
    return [
        inner
        for _, inner in _members(annotation)
        if isinstance(inner, type) and issubclass(inner, Part)
    ]


def _members(annotation: Any) -> Iterator[tuple[str | None, Any]]:
    """The plain types that an annotation unites, with their tags."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        tag = next((item.tag for item in metadata if isinstance(item, Tag)), None)
        for inner_tag, member in _members(inner):
            yield tag or inner_tag, member
    elif get_origin(annotation) is list or not get_args(annotation):
        yield None, annotation
    else:
        for argument in get_args(annotation):
            yield from _members(argument)
