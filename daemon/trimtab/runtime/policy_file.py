"""The policy in force: read at start, read again on demand; a bad file never takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab.domain.models import ModelSpec
from trimtab.errors import PolicyError
from trimtab.policy.compiled import Policy
from trimtab.policy.load import LoadResult, load_policy
from trimtab.runtime.daemon import Daemon
from trimtab.serving.control import PolicyView


class PolicyFile:
    """One policy by name or path.

    Args:
        name: Its name in the folder, or a path.
        folder: Where policies are.
        state: State directory.
        log: A structlog logger.
    """

    def __init__(self, name: str, folder: Path, state: Path, log: Any) -> None:
        self._name = name
        self._folder = folder
        self._state = state
        self._log = log
        self._daemon: Daemon | None = None
        self._model: ModelSpec | None = None
        self._policy: Policy | None = None
        self._path = ""
        self._error = ""

    def load(self, model: ModelSpec | None) -> Policy:
        """The policy to start with.

        Raises:
            PolicyError: It is bad.
        """
        self._model = model
        result = self._read()
        self._policy = result.require()
        self._path = str(result.files[0]) if result.files else ""
        return self._policy

    def connect(self, daemon: Daemon) -> None:
        """Whom to tell."""
        self._daemon = daemon

    def view(self) -> PolicyView:
        """For status."""
        policy = self._policy
        assert policy is not None
        return PolicyView(
            name=policy.name,
            revision=policy.revision,
            description=policy.description,
            path=self._path,
            stale=bool(self._error),
            error=self._error,
        )

    def reload(self) -> PolicyView:
        """Read it again now."""
        try:
            policy = self._read().require()
        except PolicyError as error:
            self._error = error.message
            raise
        self._error = ""
        if self._policy is None or policy.revision != self._policy.revision:
            self._policy = policy
            if self._daemon is not None:
                self._daemon.put_in_force(policy)
        return self.view()

    def reload_quietly(self) -> None:
        """Read it again; a bad file is logged."""
        try:
            view = self.reload()
        except PolicyError as error:
            self._log.warning("policy_bad", policy=self._name, error=error.message)
        else:
            self._log.info("policy_read", policy=view.name, revision=view.revision)

    def _read(self) -> LoadResult:
        model = self._model
        names = None if model is None else [variant.name for variant in model.variants]
        ratios = (
            {} if model is None else {variant.name: variant.quality for variant in model.variants}
        )
        return load_policy(self._name, self._folder, catalog_variants=names, quality_ratios=ratios)
