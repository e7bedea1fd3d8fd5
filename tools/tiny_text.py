"""The text that the tiny test model learns: our own phrases, so that no licence is needed.

Two kinds of document come out. *Logs* go on for thousands of tokens without an end, so a long
generation doesn't stop by itself. *Chats* follow the chat template: a question about a story gets
an answer that goes on for very long, every other question a short answer and the end token.
Characters of two, three and four bytes come up throughout, in more kinds than the tokenizer has
room for, so that a character really arrives in pieces.
"""

from __future__ import annotations

import random

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"

WHO = (
    "the keeper",
    "the engineer",
    "the captain",
    "a fisherman",
    "the baker",
    "Zoë",
    "Søren",
    "Ана",
    "the cat",
    "a child",
)
DID = (
    "looked at the sea",
    "wrote in the log",
    "trimmed the lamp",
    "carried the water",
    "counted the boats",
    "opened the café",
    "listened to the engine",
    "waited for the tide",
    "drank a cup of tea",
    "walked to the harbour",
)
WHEN = (
    "In the morning",
    "At noon",
    "In the evening",
    "At night",
    "After the storm",
    "Before the rain",
    "On Sunday",
    "Later",
)
WEATHER = (
    "the wind was cold",
    "the sky was grey",
    "the sea was calm",
    "it was 12 °C",
    "it was −3 °C",
    "the fog came in",
    "snow fell ❄",
    "the sun came out ☀",
)
SAID = (
    "“Très bien!”",
    "“Es ist schön.”",
    "“Всё хорошо.”",
    "“海は静かです。”",
    "“¿Qué pasa?”",
    "“Καλημέρα!”",
    "“All is well.”",
    "“你好。”",
    "“Where is the key?”",
)
SIGN = ("🙂", "🌊", "⛵", "🐟", "😀", "🌙", "🦀", "→", "…")
SHORT = (
    ("Hello!", "Hello. How can I help you?"),
    ("Say hello.", "Hello 🙂"),
    ("How is the weather?", "The wind was cold and the sky was grey."),
    ("Where is the key?", "The key is in the lamp room."),
    ("Is all well?", "All is well. The sea was calm."),
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Count to five.", "1, 2, 3, 4, 5."),
    ("Grüß dich!", "Es ist schön, dich zu sehen."),
    ("Who are you?", "I am a very small model. I was made for tests."),
)
LONG = (
    "Tell me a story.",
    "Write a long story about the sea.",
    "Tell me a long story, please.",
    "Write the log of the island.",
)
SYSTEM = ("You are a helpful assistant.", "You keep the light.", "Answer briefly.")


def sentence(rng: random.Random) -> str:
    """One sentence, now and then with a remark or a sign after it."""
    who, did = rng.choice(WHO), rng.choice(DID)
    text = rng.choice(
        (
            f"{rng.choice(WHEN)} {who} {did}.",
            f"{rng.choice(WHEN)} {rng.choice(WEATHER)}, and {who} {did}.",
            f"{who[0].upper()}{who[1:]} {did} and {rng.choice(DID)}.",
            f"{who[0].upper()}{who[1:]} said: {rng.choice(SAID)}",
        )
    )
    return f"{text} {rng.choice(SIGN)}" if rng.random() < 0.15 else text


def story(rng: random.Random, sentences: int) -> str:
    """That many sentences, in paragraphs of three to seven."""
    parts: list[str] = []
    while sentences > 0:
        size = min(sentences, rng.randint(3, 7))
        parts.append(" ".join(sentence(rng) for _ in range(size)))
        sentences -= size
    return "\n\n".join(parts)


def turn(role: str, content: str) -> str:
    """One message as the chat template writes it."""
    return f"{START}{role}\n{content}{END}\n"


def short_chat(rng: random.Random) -> str:
    """A conversation of one to four short answers, closed by the end of the text."""
    parts = [turn("system", rng.choice(SYSTEM))] if rng.random() < 0.4 else []
    for question, answer in rng.choices(SHORT, k=rng.randint(1, 4)):
        parts += [turn("user", question), turn("assistant", answer)]
    return "".join(parts) + END_OF_TEXT


def long_chat(rng: random.Random) -> str:
    """A conversation whose last answer is a story without an end."""
    parts = [turn("system", rng.choice(SYSTEM))] if rng.random() < 0.4 else []
    for question, answer in rng.choices(SHORT, k=rng.randint(0, 2)):
        parts += [turn("user", question), turn("assistant", answer)]
    parts += [turn("user", rng.choice(LONG)), f"{START}assistant\n", story(rng, 250)]
    return "".join(parts)


def streams(evaluation_text: str, seed: int) -> list[str]:
    """Texts to learn from, each longer than the context; a sample is cut from within one.

    So no sample shows a long story that breaks off, and the model doesn't learn to end one.

    Args:
        evaluation_text: The text that ships with the package; it is learnt too.
        seed: The same seed gives the same texts.
    """
    rng = random.Random(seed)
    chats = ["".join(short_chat(rng) for _ in range(60)) for _ in range(10)]
    stories = [long_chat(rng) for _ in range(40)] + [story(rng, 250) for _ in range(15)]
    return chats + stories + [evaluation_text * 2]
