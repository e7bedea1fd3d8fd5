"""The configuration: flag, then environment, then file, then default; validated whole."""

from trimtab.config.load import Loaded, load_config
from trimtab.config.origins import Origin, OriginKind
from trimtab.config.policies import shipped_policies
from trimtab.config.schema import (
    ApiConfig,
    Config,
    EngineConfig,
    JournalConfig,
    LogConfig,
    SensorsConfig,
    SocketsConfig,
    TcpConfig,
)

__all__ = [
    "ApiConfig",
    "Config",
    "EngineConfig",
    "JournalConfig",
    "Loaded",
    "LogConfig",
    "Origin",
    "OriginKind",
    "SensorsConfig",
    "SocketsConfig",
    "TcpConfig",
    "load_config",
    "shipped_policies",
]
