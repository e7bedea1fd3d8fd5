"""Prompts for the three kinds of text on which drafting pays differently.

Free text seldom repeats itself, so that n-gram drafts are seldom right. An answer that quotes its
prompt, and code, repeat what stands there already.
"""

from __future__ import annotations

from typing import Final

FREE_TEXT: Final = "free text"
QUOTING: Final = "quoting"
CODE: Final = "code"

TEXTS: Final[dict[str, str]] = {
    FREE_TEXT: (
        "Write a short story about a lighthouse keeper who finds a message in a bottle. "
        "Say what the weather was like, what she thought, and what she did on the next day."
    ),
    QUOTING: (
        "Repeat the following notice word for word, and then repeat it once more:\n\n"
        "The pump in the north shaft is checked every Monday before eight. Whoever checks it "
        "writes the pressure, the temperature of the bearing and the hour into the blue book. "
        "If the pressure is under four bar, the valve in the south shaft is closed first, and "
        "then the foreman is called. The blue book stays in the shaft."
    ),
    CODE: (
        "Complete this Python file by adding the methods for celsius, percent and volts in the "
        "same way:\n\n"
        "class Reading:\n"
        "    def __init__(self, name, value):\n"
        "        self.name = name\n"
        "        self.value = value\n\n"
        "    def as_bytes(self):\n"
        "        if self.value is None:\n"
        "            return f'{self.name}: unknown'\n"
        "        return f'{self.name}: {self.value} bytes'\n\n"
        "    def as_seconds(self):\n"
        "        if self.value is None:\n"
        "            return f'{self.name}: unknown'\n"
        "        return f'{self.name}: {self.value} seconds'\n"
    ),
}
