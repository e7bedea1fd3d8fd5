"""A stage as it is in the middle of a demo, written down."""

from __future__ import annotations

from trimtab.demo.plan import MIB, Plan
from trimtab.demo.stage import Chat, ChatState, Phase, Sample, Stage, Told

PLAN = Plan(
    model="m",
    ladder=("fp32", "int8", "int4"),
    context=1024,
    available_bytes=8000 * MIB,
    headroom_bytes=6700 * MIB,
    leave_bytes=6764 * MIB,
    first_squeeze_bytes=320 * MIB,
    second_squeeze_bytes=760 * MIB,
)


def sample(at_s: float, variant: str | None, squeeze: int = 0, available: int = 7000) -> Sample:
    return Sample(at_s, variant, None, available * MIB, 40.0, 0, squeeze * MIB)


def played() -> Stage:
    """Down under pressure and up again, with three chats, one of them under way."""
    stage = Stage(PLAN, "A Model", phase=Phase.RELEASING, line="Memory comes back.")
    course = ["fp32"] * 10 + [None] * 3 + ["int8"] * 10 + ["fp32"] * 10
    for number, variant in enumerate(course):
        squeeze = 400 if 8 <= number < 20 else 0
        stage.look(sample(number * 0.2, variant, squeeze, 7000 - squeeze))
    stage.now_s = 6.6
    stage.chats = [
        Chat(
            1, "Why is the sky blue?", 40, "Because of light. " * 30, ChatState.DONE, 40, ("fp32",)
        ),
        Chat(
            2,
            "Écris une histoire.",
            90,
            "Il était une fois… " * 9,
            ChatState.DONE,
            60,
            ("fp32", "int8"),
        ),
        Chat(3, "A very long prompt " * 12, 90, "☀️ 東京 naïve " * 40, ChatState.RUNNING, 33),
    ]
    for chat in stage.chats[:2]:
        chat.ended_s = 5.0
    sentence = "Stepped down from fp32 to int8: 6.44 GiB were available, under 6.54 GiB."
    stage.told = [
        Told(0.1, "start", None, "fp32", "Started fp32, 1024 tokens: at start.", "10:00:00"),
        Told(2.0, "down", "fp32", "int8", sentence, "10:00:02"),
        Told(4.6, "up", "int8", "fp32", "Stepped up from int8 to fp32: there is room.", "10:00:05"),
    ]
    return stage
