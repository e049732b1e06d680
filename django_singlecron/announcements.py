"""One log line and one signal for each event of a run's life."""

from __future__ import annotations

import logging
from typing import Any

from django.db import DatabaseError, transaction
from django.dispatch import Signal

from . import signals
from .context import Run
from .history import Attempt, Holder
from .models import JobRun

logger = logging.getLogger("django_singlecron")


def acquired(run: Run) -> None:
    """Say, inside the run's transaction, that it is about to start."""
    logger.info('Job "%s" acquired: run %s starts.', run.name, run.id, extra=_extra(run.name, run.id))
    if not signals.run_acquired.has_listeners(JobRun):
        return
    try:
        # A savepoint, so that a receiver's database error does not break the job's transaction.
        with transaction.atomic(using=run.using):
            responses = _send(signals.run_acquired, run.name, run.id, run.using, run=run)
            transaction.set_rollback(any(isinstance(said, Exception) for _, said in responses), using=run.using)
    except DatabaseError:
        logger.exception('A receiver of run_acquired broke its savepoint in run %s of the job "%s".', run.id, run.name)


def skipped(attempt: Attempt, using: str, run_id: int | None, holder: Holder | None) -> None:
    """Say that an attempt did not run."""
    logger.info(
        'Job "%s" skipped%s: %s.',
        attempt.job,
        _numbered(run_id),
        describe_holder(holder),
        extra=_extra(attempt.job, run_id),
    )
    _send(
        signals.run_skipped,
        attempt.job,
        run_id,
        using,
        skip_reason=JobRun.SkipReason.LOCKED.value,
        held_by=holder.run_id if holder else None,
    )


def succeeded(run: Run, seconds: float) -> None:
    """Say that a run's work is committed."""
    logger.info('Job "%s" succeeded: run %s took %.3f s.', run.name, run.id, seconds, extra=_extra(run.name, run.id))
    _send(signals.run_succeeded, run.name, run.id, run.using, error=None)


def ended(job: str, run_id: int, using: str, status: JobRun.Status, error: BaseException, seconds: float) -> None:
    """Say how a run ended that raised."""
    logged: dict[str, Any] = {"exc_info": error, "extra": _extra(job, run_id)}
    if status == JobRun.Status.SUCCEEDED:
        logger.error('Job "%s" succeeded, then raised: the work of run %s is committed.', job, run_id, **logged)
        _send(signals.run_succeeded, job, run_id, using, error=error)
        return
    if logger.hasHandlers():
        # Else logging's last resort would print the traceback, beside whoever called the job and prints its error.
        logger.error('Job "%s" %s: run %s raised after %.3f s.', job, status.value, run_id, seconds, **logged)
    _send(signals.run_failed, job, run_id, using, status=status.value, error=error)


def lost(job: str, holder: Holder, using: str) -> None:
    """Say that an earlier run was killed."""
    logger.error(
        'Job "%s" lost: run %s on %s (pid %s), started %s, ended without a word. Its work is rolled back.',
        job,
        holder.run_id,
        holder.host,
        holder.pid,
        holder.started_at.isoformat(sep=" ", timespec="seconds"),
        extra=_extra(job, holder.run_id),
    )
    _send(signals.run_failed, job, holder.run_id, using, status=JobRun.Status.LOST.value, error=None)


def describe_holder(holder: Holder | None) -> str:
    """Return who holds a lock and since when."""
    if holder is None:
        return "its lock is held, by a run that left no record"
    since = holder.started_at.isoformat(sep=" ", timespec="seconds")
    return f"run {holder.run_id} on {holder.host} (pid {holder.pid}) holds its lock since {since}"


def _numbered(run_id: int | None) -> str:
    return "" if run_id is None else f" (attempt {run_id})"


def _extra(job: str, run_id: int | None) -> dict[str, Any]:
    return {"job": job, "run_id": run_id}


def _send(signal: Signal, job: str, run_id: int | None, using: str, **more: object) -> list[tuple[Any, Any]]:
    return signal.send_robust(sender=JobRun, job=job, run_id=run_id, using=using, **more)
