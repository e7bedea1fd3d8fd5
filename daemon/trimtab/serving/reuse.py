"""Which conversation a prompt begins with at the least cost.

A shifted conversation's KV has seen what it forgot, and stands at other positions: it only serves
prompts that continue it past the context, never one that would fit whole. Its first tokens, which
never move, serve everybody.

What is on disk has to be read before any of it serves, and all of it for its checksum. So a short
beginning that a prompt shares with a long conversation there is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from trimtab.domain.prefix import common_prefix
from trimtab.domain.view import View
from trimtab.serving.claims import Found, Running, Source

READ_RATIO: Final = 0.1
"""What a position on disk costs ÷ computing one: twice what `bench kv` allows, to be clearly so."""


def cheapest(
    prompt: array[int], view: View, conversations: Iterable[Source], least: int
) -> Found | None:
    """The conversation that leaves the fewest tokens to compute, with those to read in proportion.

    Args:
        prompt: All its token ids.
        view: What would be seen of it from nothing; with ``dropped`` it doesn't fit whole.
        conversations: Those that may serve.
        least: Positions that are worth the trouble.

    Returns:
        None where computing the prompt costs no more.
    """
    best: Found | None = None
    cost = float(view.cached(len(prompt)))
    for source in conversations:
        found = _served_by(source, common_prefix(prompt, source.tokens), view, source.lease.valid)
        if source.busy and not found.goes_on:
            continue  # what a disk is taking can be taken from it, not copied
        left = found.view.cached(len(prompt)) - found.positions + READ_RATIO * _to_read(source)
        if found.positions >= least and left < cost:
            best, cost = found, left
    return best


def once_read(prompt: array[int], view: View, running: Running) -> Found:
    """What serves of a running conversation once all its tokens are in its KV."""
    tokens = running.tokens
    return _served_by(running, common_prefix(prompt, tokens), view, len(tokens))


def _to_read(source: Source) -> int:
    """Positions that are read from disk before any of them serves."""
    return 0 if source.stored is None else source.stored.tokens


def _served_by(source: Source, shared: int, view: View, valid: int) -> Found:
    """What of a conversation serves, given how many tokens it shares with the prompt.

    Never more than is valid of it, whatever its tokens say.
    """
    shifted = source.view.dropped
    continues = source.view.keep == view.keep and shared > view.keep + shifted
    if shifted and view.dropped and continues:
        return Found(source, min(shared - shifted, valid), source.view)
    shared = min(shared, valid, source.view.keep if shifted else shared)
    if view.dropped and not shifted and shared > view.keep:
        return Found(source, shared, View(view.keep))  # goes on whole, and is shifted when full
    return Found(source, min(shared, view.keep) if view.dropped else shared, view)
