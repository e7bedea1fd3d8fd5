"""A conversation's KV on its way from one segment into another.

What was there stays as it is: whoever crashes on the way goes on from the old segment.
"""

from __future__ import annotations

from trimtab.catalog.rotation import Rotation
from trimtab.worker.kv_cache import KvCache


class KvMove:
    """Copies a cache layer by layer, leaving some tokens out.

    Args:
        source: Isn't changed.
        target: Gets the first ``keep`` positions, and after them what follows the ``dropped``
            ones, its keys turned back by as many positions. Its length is 0 until it is whole.
        keep: Positions at the beginning that stay where they are.
        rotation: Turns keys back by ``dropped`` positions; None if none are dropped.
        dropped: Positions that are left out.
    """

    def __init__(
        self,
        source: KvCache,
        target: KvCache,
        keep: int,
        dropped: int = 0,
        rotation: Rotation | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._keep = keep
        self._dropped = dropped
        self._rotation = rotation
        self._plane = 0

    @property
    def target(self) -> KvCache:
        """Where it goes."""
        return self._target

    def advance(self) -> bool:
        """Move the keys and values of one more layer; True once all have been."""
        end = self._source.length
        for plane in (self._plane, self._plane + 1):
            source, target = self._source.plane(plane), self._target.plane(plane)
            target[:, : self._keep] = source[:, : self._keep]
            rest = source[:, self._keep + self._dropped : end]
            is_keys = plane == self._plane
            if is_keys and self._rotation is not None:
                rest = self._rotation.turn(rest)
            target[:, self._keep : end - self._dropped] = rest
        self._plane += 2
        if self._plane < self._source.planes:
            return False
        self._target.length = end - self._dropped
        return True
