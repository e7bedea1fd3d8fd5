"""The policy in force: where it comes from, and how it is changed while streams run.

One owner, one way in: whatever asks for another look (a change on disk, SIGHUP, the API, a
schedule) goes through `reload`. A bad file never takes the place of a good policy; it makes the
policy in force *stale*, with the error to be seen, until the file is good again.

Changes are noticed by hashing the content of every file that the policy is made of. inotify makes
that quick, polling makes it certain: a swapped link, a file that vanishes and comes back, a
filesystem without inotify. A file that is being written is left alone until it has been the same
for a moment.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec
from trimtab.errors import PolicyError, StateError, TrimtabError
from trimtab.policy.compile import device_variants
from trimtab.policy.compiled import Policy
from trimtab.policy.effective import EffectiveValue, effective_values
from trimtab.policy.load import LoadResult, compile_text, load_policy
from trimtab.policy.read import MAX_BYTES
from trimtab.policy.schedule import entry_in_force
from trimtab.runtime.inotify import Happened, Inotify, folders_of, open_inotify
from trimtab.runtime.last_good import (
    load_choice,
    load_last_good,
    save_choice,
    save_last_good,
)
from trimtab.runtime.policy_library import (
    as_name,
    check_text,
    list_policies,
    show_values,
    values_json,
)
from trimtab.serving.control import PolicyView

POLL_S: Final = 0.5
POLL_WITH_INOTIFY_S: Final = 300.0
POLL_AFTER_FAULT_S: Final = 5.0
QUIET_S: Final = 0.08
QUIET_AT_MOST_S: Final = 0.5


class Target(Protocol):
    """What puts a policy in force."""

    def put_in_force(self, policy: Policy) -> None:
        """Apply another policy between two ticks."""


class PolicyWatch:
    """Keeps the policy in force up to date with its files and its schedule.

    Args:
        name: Of the policy, or a path.
        folder: Where policies are.
        state: State directory, for the last good policy.
        log: A structlog logger.
        clock: Wall time for schedules, and waiting.
        notify: Gives an inotify instance, or None for polling alone.
        poll_s: Time between two looks; None: as long as inotify allows.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        state: Path,
        log: Any,
        clock: Clock,
        notify: Callable[[], Inotify | None] = open_inotify,
        poll_s: float | None = None,
    ) -> None:
        self._configured = name
        self._name = name
        self._folder = folder
        self._state = state
        self._log = log
        self._clock = clock
        self._notify = notify
        self._poll_s = poll_s
        self._target: Target | None = None
        self._model: ModelSpec | None = None
        self._base: Policy | None = None
        self._values: dict[str, tuple[EffectiveValue, ...]] = {}
        self._others: dict[str, Policy] = {}
        self._in_force: Policy | None = None
        self._path = ""
        self._error = ""
        self._files: tuple[Path, ...] = ()
        self._seen = b""
        self._wake = asyncio.Event()
        self._whole = False
        self._one_at_a_time = asyncio.Lock()
        self.looked: Callable[[], None] = _nothing

    # ------------------------------------------------------------ start

    def load(self, model: ModelSpec | None) -> Policy:
        """The policy to start with: from its file, or the last good one if the file is bad.

        Raises:
            PolicyError: The file is bad, and there is no last good policy.
        """
        self._model = model
        self._name = self._chosen_name()
        read = self._read(self._name)
        self._files, self._seen = read.files, read.content
        try:
            self._accept(read)
        except PolicyError as error:
            last_good = self._last_good()
            if last_good is None:
                raise
            self._base, self._values = last_good.policy, _values_of((last_good,))
            self._error = error.message
            self._log.error(
                "policy_bad_at_start", policy=self._name, error=error.message, fallback="last good"
            )
        self._in_force = self._holding()
        return self._in_force

    def connect(self, target: Target) -> None:
        """Who is told of another policy."""
        self._target = target

    # ------------------------------------------------------------ what people see and order

    def view(self) -> PolicyView:
        """For status: the policy in force, and whether its file says otherwise."""
        policy = self._in_force
        assert policy is not None
        return PolicyView(
            name=policy.name,
            revision=policy.revision,
            description=policy.description,
            path=self._path,
            stale=bool(self._error),
            error=self._error,
        )

    async def reload(self) -> PolicyView:
        """Look again, now.

        Raises:
            PolicyError: The file is bad; the policy in force stays.
        """
        async with self._one_at_a_time:
            return await self._change(self._name)

    async def compile(self, text: str) -> Policy:
        """Compile a candidate for this device, without touching what is in force.

        Raises:
            PolicyError: It is bad.
        """
        device = device_variants(self._model)
        result = await asyncio.to_thread(compile_text, text.encode(), "candidate", device)
        return result.require()

    async def use(self, name: str) -> PolicyView:
        """Put another policy in force, by its name; it is watched from then on.

        Raises:
            PolicyError: It is bad or isn't there; the policy in force stays, and stays watched.
        """
        async with self._one_at_a_time:
            view = await self._change(as_name(name))
            try:
                await asyncio.to_thread(save_choice, self._state, self._configured, name)
            except StateError as error:
                self._log.warning("choice_not_kept", error=error.message, hint=error.hint)
        return view

    async def library(self) -> list[dict[str, Any]]:
        """Every policy that can be used, and what is wrong with those that can't."""
        return await asyncio.to_thread(list_policies, self._folder, device_variants(self._model))

    async def values(self, name: str) -> dict[str, Any]:
        """A policy as it counts, each value with where it comes from.

        Raises:
            PolicyError: It is bad or isn't there.
        """
        device = device_variants(self._model)
        return await asyncio.to_thread(show_values, as_name(name), self._folder, device)

    def values_in_force(self) -> dict[str, Any]:
        """The policy in force as it counts, also where its file says otherwise by now."""
        policy = self._in_force
        assert policy is not None
        return values_json(policy, self._values[policy.name])

    async def check(self, text: str) -> dict[str, Any]:
        """What is wrong with a policy that stands by itself, on this device."""
        return await asyncio.to_thread(check_text, text, device_variants(self._model))

    def reload_soon(self) -> None:
        """Have the watch look again at once; for signal handlers. Faults are logged."""
        self._seen = b""
        self._wake.set()

    # ------------------------------------------------------------ the watch

    async def run(self) -> None:
        """Watch until cancelled."""
        inotify = self._notify()
        loop = asyncio.get_running_loop()
        poll_s = self._poll_s or (POLL_S if inotify is None else POLL_WITH_INOTIFY_S)
        if inotify is not None:
            loop.add_reader(inotify.fileno(), self._something_happened, inotify)
        try:
            while True:
                rest_s = poll_s
                try:
                    content, folders = await asyncio.to_thread(_survey, self._files)
                    if inotify is not None:
                        inotify.watch(folders, {file.name for file in self._files})
                    await self._look(content)
                except Exception as error:  # the watch must outlive what nobody foresaw
                    self._log.error("policy_watch_failed", error=repr(error))
                    rest_s = min(poll_s, POLL_AFTER_FAULT_S)
                await self._wait(rest_s)
        finally:
            if inotify is not None:
                loop.remove_reader(inotify.fileno())
                inotify.close()

    async def _look(self, content: bytes) -> None:
        """Act on what the files say now, and on the schedule."""
        if content != self._seen:
            await self._settled(content)
            self._whole = False
            try:
                await self.reload()
            except TrimtabError as error:
                self._log.warning("policy_bad", policy=self._name, error=error.message)
            self.looked()
        else:
            self._apply()

    async def _settled(self, now: bytes) -> None:
        """Wait until what is written has been the same for a moment, but not for ever.

        A file that is known to have been written whole needn't be waited for.
        """
        waited_s = 0.0
        while waited_s < QUIET_AT_MOST_S and not self._whole:
            await self._clock.sleep(QUIET_S)
            waited_s += QUIET_S
            later = await asyncio.to_thread(_content_hash, self._files)
            if later == now:
                return
            now = later

    async def _wait(self, seconds: float) -> None:
        """Until something happens, or for this long."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _something_happened(self, inotify: Inotify) -> None:
        happened = inotify.drain()
        if happened is not Happened.NOTHING:
            self._whole = self._whole or happened is Happened.WHOLE
            self._wake.set()

    # ------------------------------------------------------------ inside

    async def _change(self, name: str) -> PolicyView:
        """Read a policy and its scheduled ones off the loop, and put what holds in force.

        One at a time.
        """
        read = await asyncio.to_thread(self._read, name)
        if name == self._name:
            self._seen = read.content
        try:
            self._accept(read)
        except PolicyError as error:
            if name == self._name:
                self._error = error.message
                self._files = read.files or self._files
            raise
        self._name = name
        self._apply()
        return self.view()

    def _read(self, name: str) -> _Read:
        """Everything that the policy needs. Blocking; called in a thread."""
        device = device_variants(self._model)
        result = load_policy(name, self._folder, device)
        others: dict[str, LoadResult] = {}
        if result.policy is not None:
            beside = result.files[0].parent
            for entry in result.policy.schedule:
                others[entry.policy] = load_policy(entry.policy, beside, device)
        files = dict.fromkeys(
            (*result.files, *(file for other in others.values() for file in other.files))
        )
        return _Read(result, others, tuple(files), _content_hash(files))

    def _accept(self, read: _Read) -> None:
        """Take over what was read, if all of it is good.

        Raises:
            PolicyError: It isn't.
        """
        base = read.result.require()
        others = {name: other.require() for name, other in read.others.items()}
        self._base, self._others, self._values = base, others, read.values
        self._files, self._seen = read.files, read.content
        self._path = str(read.files[0]) if read.files else ""
        self._error = ""
        for result in (read.result, *read.others.values()):
            for warning in result.warnings:
                self._log.warning("policy_doubt", problem=warning.text())
        try:
            save_last_good(self._state, read.result)
        except StateError as error:
            self._log.warning("last_good_not_kept", error=error.message, hint=error.hint)

    def _apply(self) -> None:
        """Put in force what holds now, if that is another policy than before."""
        chosen = self._holding()
        if chosen is self._in_force:
            return
        if self._target is not None:
            self._target.put_in_force(chosen)
        self._in_force = chosen
        self._log.info("policy_in_force", policy=chosen.name, revision=chosen.revision)

    def _holding(self) -> Policy:
        """The configured policy, or the one that its schedule has for this moment.

        A policy of unchanged content stays the very same value, so that nothing is applied again.
        """
        base, now = self._base, self._in_force
        assert base is not None
        entry = entry_in_force(base.schedule, self._clock.wall_s()) if base.schedule else None
        chosen = self._others.get(entry.policy, base) if entry is not None else base
        same = now is not None and (now.name, now.revision) == (chosen.name, chosen.revision)
        return now if same and now is not None else chosen

    def _chosen_name(self) -> str:
        """The configured policy, or the one that a person chose over it."""
        try:
            return load_choice(self._state, self._configured)
        except StateError as error:
            self._log.warning("choice_unusable", error=error.message, hint=error.hint)
            return self._configured

    def _last_good(self) -> LoadResult | None:
        try:
            return load_last_good(self._state, self._model)
        except StateError as error:
            self._log.warning("last_good_unusable", error=error.message, hint=error.hint)
            return None


class _Read:
    """What one look found.

    Args:
        result: The policy.
        others: The policies of its schedule, by name.
        files: Everything that all of them are made of.
        content: Hash of those files.
    """

    def __init__(
        self,
        result: LoadResult,
        others: dict[str, LoadResult],
        files: tuple[Path, ...],
        content: bytes,
    ) -> None:
        self.result = result
        self.others = others
        self.files = files
        self.content = content
        self.values = _values_of((result, *others.values()))


def _values_of(results: Iterable[LoadResult]) -> dict[str, tuple[EffectiveValue, ...]]:
    """Each policy as it counts, by its name."""
    return {
        one.policy.name: effective_values(one.policy, one.document)
        for one in results
        if one.policy is not None and one.document is not None
    }


def _content_hash(files: Iterable[Path]) -> bytes:
    """Hash of all files' content; one that can't be read counts as such."""
    digest = sha256()
    for file in files:
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                raise OSError(0, "no regular file")  # a pipe would be waited on for ever
            with file.open("rb") as stream:
                content = b"\x01" + stream.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            content = b"\x00" + str(getattr(error, "errno", "")).encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


def _survey(files: tuple[Path, ...]) -> tuple[bytes, set[Path]]:
    """The hash of the files, and the folders in which something can change it. Blocking."""
    return _content_hash(files), {folder for file in files for folder in folders_of(file)}


def _nothing() -> None:
    """Nobody wants to know that the files were looked at."""
