"""What a request asks for, in whichever dialect it came."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.serving.requests import GenerationRequest


@dataclass(frozen=True, slots=True)
class Wish:
    """A request and how its answer is to be sent.

    Attributes:
        request: For serving.
        model: The model's name as the client wrote it, for the answer.
        stream: In pieces while it comes.
        include_usage: With token counts before the end of a stream.
    """

    request: GenerationRequest
    model: str
    stream: bool
    include_usage: bool = False
