"""structlog without rich.

structlog imports rich where it is installed, for tracebacks that we don't use. That is 5 MB and
80 ms in a daemon that is to stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.lean import import_lean

if TYPE_CHECKING:
    import structlog
else:
    structlog = import_lean("structlog", absent=("rich",))

__all__ = ["structlog"]
