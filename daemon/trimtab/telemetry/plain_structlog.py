"""structlog without rich.

structlog imports rich where it is installed, for tracebacks that we don't use. That is 5 MB and
80 ms in a daemon that is to stay small, so rich is out of reach while structlog is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import structlog
else:

    def _import_without_rich() -> ModuleType:
        present = sys.modules.get("rich")
        sys.modules["rich"] = None
        try:
            import structlog
        finally:
            if present is None:
                del sys.modules["rich"]
            else:
                sys.modules["rich"] = present
        return structlog

    structlog = sys.modules.get("structlog") or _import_without_rich()

__all__ = ["structlog"]
