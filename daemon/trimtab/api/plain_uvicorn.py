"""uvicorn without its command line.

`import uvicorn` brings in click, reloaders and process pools for a program that we don't run, and
the configuration of loggers. That is more than a megabyte in a daemon that is to stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.lean import import_lean

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import ServerState
else:
    import_lean("uvicorn", unused=("uvicorn.main", "logging.config"))
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import ServerState

__all__ = ["STATUS_LINE", "Config", "HttpToolsProtocol", "ServerState"]
