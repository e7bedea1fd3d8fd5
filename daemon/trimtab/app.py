"""Wires everything: configuration in, a running daemon out. No logic."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from trimtab import __version__
from trimtab.api.service import ApiService, Bound, bind
from trimtab.api.sockets import passed_by_systemd
from trimtab.catalog.load import Catalog, load_catalog
from trimtab.config.engine_threads import default_threads
from trimtab.config.schema import Config
from trimtab.domain.models import ModelSpec
from trimtab.errors import NoModelError, StateError
from trimtab.huge_pages import lay_into_huge_pages
from trimtab.lean import give_back_free_memory
from trimtab.profile.known import Known, known_here
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.daemon import Daemon, Options
from trimtab.runtime.kept_writes import KeptWrites, boot_of
from trimtab.runtime.last_point import LastPoint, load_point
from trimtab.runtime.notify import Notifier, own_notifier
from trimtab.runtime.overview import DecisionRecords, Overview
from trimtab.runtime.policy_watch import PolicyWatch
from trimtab.runtime.pressure import watch_pressure
from trimtab.runtime.residence import avoid_oom_killer, lock_memory
from trimtab.runtime.tasks import spawn
from trimtab.sensors.configured import sensor_config
from trimtab.sensors.suite import SensorSuite
from trimtab.serving.disk import KvDisk
from trimtab.serving.keep import restore
from trimtab.telemetry.journal import Journal
from trimtab.telemetry.log import LogFormat, LogLevel, configure, get_logger
from trimtab.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from trimtab.telemetry.otlp import OtlpExport

STOP_MARGIN_S: Final = 15.0
"""What ending workers and connections may take on a slow board, beyond the drain."""

STATE_S: Final = 2.0
"""What writing the state down may take of that."""


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns:
        The exit status: 0 after an orderly end.

    Raises:
        ConfigError: A socket can't be bound safely, or a sensor's setting is wrong.
        SocketTakenError: A living daemon has the sockets.
        PolicyError: The policy is bad, and there is no last good one.
        StateError: The state directory can't be used.
    """
    configure(LogLevel(config.log.level), LogFormat(config.log.format))
    faulthandler.enable()  # a watchdog's SIGABRT shows where we hung
    bound = bind(config.sockets, tcp=config.tcp)
    notifier = own_notifier()
    try:
        return asyncio.run(_serve(config, bound, notifier))
    finally:
        notifier.close()
        bound.close()


async def _serve(config: Config, bound: Bound, notifier: Notifier) -> int:
    log = get_logger("daemon")
    _settle_in(config, log)
    clock = SystemClock()
    journal = Journal(config.state, config.journal.size_bytes)
    threads = config.engine.threads or default_threads(len(os.sched_getaffinity(0)))
    known = _known(config, _model(config, load_catalog(config.models), log), threads, log)
    model = known.model
    policies = PolicyWatch(
        config.policy, config.policies, config.state, get_logger("policy"), clock
    )
    policy = policies.load(model)
    suite = SensorSuite(
        sensor_config(config),
        on_change=lambda change: get_logger("sensors").info(
            "signal_quality", signal=change.signal, quality=change.after, reason=change.reason
        ),
    )
    scheduler = AsyncIOScheduler(executors={"default": DebugExecutor()})  # runs jobs in the loop
    suite.attach(scheduler)
    scheduler.start()
    metrics = Metrics()
    records = DecisionRecords(journal, get_logger("planner"), metrics.decision_made)
    options = Options(
        threads=threads,
        decoder=config.engine.decoder,
        tick_s=config.tick_s,
        proc_root=config.sensors.proc_root,
        first_decision=journal.next_id,
        kv_disk=_kv_disk(config, log),
        resident=known.resident,
        load_s=known.load_s,
        working=known.working,
        device=known.device,
        last_point=load_point(config.state, model, threads, log),
    )
    daemon = Daemon(options, policy, suite, clock, records, get_logger("workers"))
    policies.connect(daemon)
    overview = Overview(daemon, policies, journal, records)
    api = ApiService(config, bound, daemon.gateway, overview, metrics, clock)
    await api.start()
    kept_writes = _kept_writes(config, daemon, options.kv_disk, log)
    daemon.start(model)
    _bring_back(daemon, model, notifier, log)
    watching = spawn(policies.run(), "policy_watch", daemon.report)
    hint = watch_pressure(suite.config.roots, daemon.look)
    last_point = LastPoint(config.state, log, daemon.report)
    otlp = _otlp(config, metrics, clock)
    exporting = spawn(otlp.run(), "otlp", daemon.report) if otlp is not None else None
    _follow_ticks(notifier, daemon, overview, policies, last_point, kept_writes)
    log.info(
        "serving",
        version=__version__,
        model=model.model_id if model is not None else None,
        policy=policy.name,
        inference=str(config.sockets.inference),
        control=str(config.sockets.control),
    )
    reason = await _until_told(policies, notifier, clock)
    notifier.stopping(config.api.drain_s + STOP_MARGIN_S)
    log.info("stopping", reason=reason)
    watching.cancel()
    if exporting is not None:
        exporting.cancel()
    await daemon.drain(config.api.drain_s)
    await api.stop(1.0)
    await daemon.stop()
    await _write_state(last_point, kept_writes, journal, log)
    if otlp is not None:
        await otlp.close()
    if hint is not None:
        hint.close()
    suite.close()
    scheduler.shutdown(wait=False)
    log.info("stopped")
    # The end of the loop waits for the threads of its executor: for one that has none.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    return 0


async def _write_state(
    last_point: LastPoint, kept_writes: KeptWrites | None, journal: Journal, log: Any
) -> None:
    """Bring the state onto its disk, unless that hangs."""
    try:
        async with asyncio.timeout(STATE_S):
            await last_point.written()
            if kept_writes is not None:
                await kept_writes.close()
            await asyncio.to_thread(journal.close)
    except TimeoutError:
        log.warning("state_not_written", reason=f"its disk took longer than {STATE_S:.0f} s")


def _settle_in(config: Config, log: Any) -> None:
    """Get what the machine allows for the controller to outlive everything else, and be small."""
    gc.collect()
    gc.freeze()  # what has been imported stays: nobody need look at it again
    give_back_free_memory()  # before it is locked: locked pages are not given back
    laid = sum(lay_into_huge_pages())  # a daemon at rest finds few pages again faster than many
    log.debug("memory_laid_together", bytes=laid)
    reasons = {
        "memory_not_locked": lock_memory(),
        "oom_killer_not_avoided": avoid_oom_killer(config.sensors.proc_root),
    }
    for event, reason in reasons.items():
        if reason:
            log.debug(event, reason=reason)


def _bring_back(daemon: Daemon, model: ModelSpec | None, notifier: Notifier, log: Any) -> None:
    """Conversations that an earlier controller left in systemd's descriptor store go on."""
    passed = passed_by_systemd(os.environ, os.getpid())
    restored = restore(passed, daemon.pool, model, notifier)
    if restored.conversations or restored.dropped:
        log.info("conversations_restored", count=restored.conversations, dropped=restored.dropped)


def _follow_ticks(
    notifier: Notifier,
    daemon: Daemon,
    overview: Overview,
    policies: PolicyWatch,
    last_point: LastPoint,
    kept_writes: KeptWrites | None,
) -> None:
    """Tell systemd that we are ready, and from here on with each completed tick that we live."""

    def ticked(at_s: float) -> None:
        last_point.seen(at_s, daemon.gateway.model(), daemon.dispatcher.point)
        if kept_writes is not None:
            kept_writes.seen(at_s)
        if notifier.heard:
            notifier.alive(at_s)
            notifier.status(overview.headline())

    notifier.ready(overview.headline())
    daemon.on_tick = ticked
    policies.looked = notifier.reloaded


async def _until_told(policies: PolicyWatch, notifier: Notifier, clock: SystemClock) -> str:
    """Wait for the signal to stop; SIGHUP reads the policy again."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not told.done():
            told.set_result(name)

    def read_again() -> None:
        notifier.reloading(clock.monotonic_s())
        policies.reload_soon()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, read_again)
    return await told


def _kv_disk(config: Config, log: Any) -> KvDisk | None:
    """Where idle conversations may go; None, with the reason in the log, if there is no disk."""
    try:
        mounts = (config.sensors.proc_root / "self" / "mounts").read_text(errors="replace")
        return KvDisk(config.cache / "kv", mounts)
    except (OSError, StateError) as error:
        log.warning("no_kv_disk", reason=str(error))
        return None


def _kept_writes(
    config: Config, daemon: Daemon, disk: KvDisk | None, log: Any
) -> KeptWrites | None:
    """What was written to disk today counts, whoever wrote it; None without a disk."""
    if disk is None:
        return None
    boot = boot_of(config.sensors.proc_root)
    kept = KeptWrites(config.state, disk.writes, daemon.clock, boot, log, daemon.report)
    kept.restore()
    return kept


def _otlp(config: Config, metrics: Metrics, clock: SystemClock) -> OtlpExport | None:
    """The export to a collector, if one is configured; a missing package stops nobody."""
    if config.otlp.endpoint is None:
        return None
    log = get_logger("otlp")
    try:
        from trimtab.telemetry.otlp import begin
    except ImportError as error:
        hint = "`pip install 'trimtab[otel]'` into trimtab's environment."
        log.error("otlp_not_installed", reason=str(error), hint=hint)
        return None
    return begin(config.otlp, metrics, clock, log)


def _known(config: Config, model: ModelSpec | None, threads: int, log: Any) -> Known:
    """What `trimtab profile` has measured of the model on this device."""
    known = known_here(model, config.state, config.sensors.proc_root, threads)
    for reason in known.reasons:
        log.warning("profile_not_used", reason=reason, hint="`trimtab profile` measures again.")
    if known.measured:
        log.info("profile_used", variants=sorted(known.resident))
    return known


def _model(config: Config, catalog: Catalog, log: Any) -> ModelSpec | None:
    """The model to serve; None, with the reason in the log, if there is none."""
    for damaged in catalog.damaged:
        log.warning(
            "model_damaged", folder=damaged.folder, variant=damaged.variant, reason=damaged.reason
        )
    wanted = config.model
    if wanted is None and len(catalog.models) == 1:
        return next(iter(catalog.models.values()))
    try:
        if wanted is None and catalog.models:
            names = ", ".join(sorted(catalog.models))
            raise NoModelError(
                f"there are several models ({names}), and none is chosen",
                hint="Set `model` in the configuration.",
            )
        return catalog.model(wanted or "")
    except NoModelError as error:
        log.error("no_model", reason=error.message, hint=error.hint)
        return None
