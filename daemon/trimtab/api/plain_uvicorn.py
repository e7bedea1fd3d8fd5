"""uvicorn without its command line.

`import uvicorn` brings in click, reloaders and process pools for a program that we don't run. That
is more than a megabyte in a daemon that is to stay small, so a stand-in takes the place of
`uvicorn.main` while uvicorn is imported. What isn't in the stand-in isn't used here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import ServerState
else:
    if "uvicorn" not in sys.modules:
        _main = ModuleType("uvicorn.main")
        _main.Server = _main.main = _main.run = None
        sys.modules["uvicorn.main"] = _main
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import ServerState

__all__ = ["STATUS_LINE", "Config", "HttpToolsProtocol", "ServerState"]
