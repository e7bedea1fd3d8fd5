"""The engine's flash attention, which is chosen when a session is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OFF: Final = "ORT_GQA_DISABLE_FLASH_ATTENTION"


@contextmanager
def flash_attention_off() -> Iterator[None]:
    """Sessions that are made meanwhile compute attention with their scores in memory."""
    before = os.environ.get(_OFF)
    os.environ[_OFF] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_OFF, None)
        else:
            os.environ[_OFF] = before
