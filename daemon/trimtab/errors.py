"""Every exception that trimtab raises on purpose.

The tree::

    TrimtabError
    ├── UsageError            the caller asked for something that can't be
    │   ├── ConfigError       a configuration file, flag or variable is wrong
    │   ├── PolicyError       a policy file is wrong
    │   └── RequestError      a field of a request is wrong (HTTP 4xx)
    ├── CatalogError          a model folder or manifest is missing or damaged
    │   ├── NoModelError      there is no model at all
    │   └── BuildError        a variant could not be built or proven
    ├── EngineError           the inference engine refused or failed
    │   ├── LoadError         a variant does not load
    │   │   └── LateLoadError not in time
    │   └── ContextError      more tokens than the context holds
    ├── WorkerError           a worker process died, hung or broke the protocol
    │   ├── SilentWorkerError it lives and does not answer in time
    │   ├── HangingWorkerError its process keeps what it holds, whatever it is sent
    │   └── DraftError        it died or was late while it loaded a draft, which may be why
    ├── ServingError          a request can't be served now (HTTP 429, 503)
    ├── SocketTakenError      a living daemon answers on the socket
    ├── NotRunningError       no daemon answers on the socket
    └── StateError            the state directory can't be read or written

Each carries a stable ``code`` for machines, and where there is one a ``hint``: the way out, as a
sentence or a command. Exceptions never log; whoever catches one decides.
"""

from __future__ import annotations


class TrimtabError(Exception):
    """The root: a fault that has a name and, where possible, a way out.

    Args:
        message: What is wrong, in one sentence that names file, line and field where they exist.
        hint: What the person can do about it.
        code: Overrides the class's stable code.
    """

    code = "trimtab_error"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            self.code = code


class UsageError(TrimtabError):
    """The caller asked for something that can't be."""

    code = "usage"


class ConfigError(UsageError):
    """A configuration file, flag or environment variable is wrong."""

    code = "config_invalid"


class PolicyError(UsageError):
    """A policy file is wrong; the message lists every problem with its place."""

    code = "policy_invalid"


class RequestError(UsageError):
    """A request's field is wrong.

    Args:
        message: What is wrong.
        param: The field's name, as the client wrote it.
        status: The HTTP status to answer with.
        hint: The way out.
        code: The stable code.
    """

    code = "invalid_request"

    def __init__(
        self, message: str, *, param: str = "", status: int = 400, hint: str = "", code: str = ""
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.param = param
        self.status = status


class CatalogError(TrimtabError):
    """A model folder or its manifest is missing or damaged."""

    code = "model_damaged"


class NoModelError(CatalogError):
    """There is no model at all."""

    code = "no_model"


class BuildError(CatalogError):
    """A variant could not be built or proven."""

    code = "build_failed"


class EngineError(TrimtabError):
    """The inference engine refused or failed."""

    code = "engine_failed"


class LoadError(EngineError):
    """A variant does not load."""

    code = "load_failed"


class LateLoadError(LoadError):
    """A variant does not load in time; what hangs, or is slow, isn't known."""


class ContextError(EngineError):
    """More tokens than the context holds."""

    code = "context_length_exceeded"


class WorkerError(TrimtabError):
    """A worker process died, hung or broke the protocol."""

    code = "worker_failed"


class SilentWorkerError(WorkerError):
    """A worker lives and does not answer in time."""

    code = "worker_silent"


class HangingWorkerError(WorkerError):
    """A worker is gone, and its process keeps what it holds: not even SIGKILL ends it."""

    code = "worker_hangs"


class DraftError(WorkerError):
    """A worker died or was late while it loaded a variant and its draft.

    Which of them it was isn't known.
    """

    code = "draft_failed"


class ServingError(TrimtabError):
    """A request can't be served now.

    Args:
        message: Why.
        status: The HTTP status: 429 when the queue is full, 503 otherwise.
        retry_after_s: When it is worth asking again, in seconds; None if unknown.
        hint: The way out.
        code: The stable code.
    """

    code = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        status: int = 503,
        retry_after_s: float | None = None,
        hint: str = "",
        code: str = "",
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status
        self.retry_after_s = retry_after_s


class SocketTakenError(TrimtabError):
    """A living daemon answers on the socket that this one was told to bind."""

    code = "socket_taken"


class NotRunningError(TrimtabError):
    """No daemon answers on the socket that a command wants to talk to."""

    code = "not_running"


class StateError(TrimtabError):
    """The state directory can't be read or written."""

    code = "state_unusable"
