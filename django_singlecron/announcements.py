"""One log line and one signal for each event of a run's life."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.db import DatabaseError, transaction
from django.dispatch import Signal

from . import signals
from .attempts import Holder
from .calls import Call
from .context import Run
from .models import JobRun

logger = logging.getLogger("django_singlecron")


def acquired(run: Run) -> bool:
    """Say, inside the run's transaction, that it is about to start; return whether somebody heard it."""
    _log(logging.INFO, run.name, run.id, 'Job "%s" acquired: run %s starts.', run.name, run.id)
    if not signals.run_acquired.has_listeners(JobRun):
        return False
    try:
        # A savepoint, so that a receiver's database error does not break the job's transaction.
        with transaction.atomic(using=run.using):
            responses = _send(signals.run_acquired, run.name, run.id, run.using, run=run)
            transaction.set_rollback(any(isinstance(said, Exception) for _, said in responses), using=run.using)
    except DatabaseError as error:
        message = 'A receiver of run_acquired broke its savepoint in run %s of the job "%s".'
        _log(logging.ERROR, run.name, run.id, message, run.id, run.name, error=error)
    return True


def skipped(call: Call, run_id: int | None, holder: Holder | None, reason: str, explain: Callable[[], str]) -> None:
    """Say that an attempt did not run."""
    if logger.isEnabledFor(logging.INFO):
        # The explanation is made only where it is read.
        message = 'Job "%s" skipped%s: %s.'
        _log(logging.INFO, call.job, run_id, message, call.job, _numbered(run_id), explain())
    _send(
        signals.run_skipped,
        call.job,
        run_id,
        call.using,
        skip_reason=reason,
        held_by=holder.run_id if holder else None,
    )


def succeeded(run: Run, seconds: float) -> None:
    """Say that a run's work is committed."""
    _log(logging.INFO, run.name, run.id, 'Job "%s" succeeded: run %s took %.3f s.', run.name, run.id, seconds)
    _send(signals.run_succeeded, run.name, run.id, run.using, error=None)


def ended(job: str, run_id: int, using: str, status: JobRun.Status, error: BaseException, seconds: float) -> None:
    """Say how a run ended that raised."""
    if status == JobRun.Status.SUCCEEDED:
        message = 'Job "%s" succeeded, then raised: the work of run %s is committed.'
        _log(logging.ERROR, job, run_id, message, job, run_id, error=error)
        _send(signals.run_succeeded, job, run_id, using, error=error)
        return
    if logger.hasHandlers():
        # Else logging's last resort would print the traceback, beside whoever called the job and prints its error.
        message = 'Job "%s" %s: run %s raised after %.3f s.'
        _log(logging.ERROR, job, run_id, message, job, status.value, run_id, seconds, error=error)
    _send(signals.run_failed, job, run_id, using, status=status.value, error=error)


def lost(job: str, holder: Holder, using: str) -> None:
    """Say that an earlier run was killed."""
    _log(
        logging.ERROR,
        job,
        holder.run_id,
        'Job "%s" lost: run %s on %s (pid %s), started %s, ended without a word. Its work is rolled back.',
        job,
        holder.run_id,
        holder.host,
        holder.pid,
        _readable(holder.started_at),
    )
    _send(signals.run_failed, job, holder.run_id, using, status=JobRun.Status.LOST.value, error=None)


def not_recorded(job: str, run_id: int, what: str) -> None:
    """Say, while an error is handled, that the history lacks something because of it."""
    _log(
        logging.ERROR,
        job,
        run_id,
        'Job "%s", run %s, is not all recorded. %s',
        job,
        run_id,
        what,
        error=sys.exc_info()[1],
    )


def rolled_back(job: str, run_id: int) -> None:
    """Say that a run was done when another one's success turned out to have taken its slot."""
    message = 'Job "%s": the work of run %s is rolled back, since its slot was taken by another run meanwhile.'
    _log(logging.WARNING, job, run_id, message, job, run_id)


def describe_skip(reason: str, holder: Holder | None, slot: datetime | None) -> str:
    """Return why an attempt did not run: which run kept it from that, where that is and since when."""
    if holder is None:
        return {
            JobRun.SkipReason.LOCKED.value: "its lock is held, by a run that left no record",
        }.get(reason, "another run took its slot")
    who = f"run {holder.run_id} on {holder.host} (pid {holder.pid})"
    since = _readable(holder.started_at)
    if reason == JobRun.SkipReason.ALREADY_RAN and slot is not None:
        return f"{who} took its slot of {_readable(slot)} at {since}"
    if reason == JobRun.SkipReason.TOO_SOON:
        return f"{who} started only at {since}"
    return f"{who} holds its lock since {since}"


def _readable(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


def _numbered(run_id: int | None) -> str:
    return "" if run_id is None else f" (attempt {run_id})"


def _log(
    level: int, job: str, run_id: int | None, message: str, *args: object, error: BaseException | None = None
) -> None:
    try:
        logger.log(level, message, *args, exc_info=error, extra={"job": job, "run_id": run_id}, stacklevel=2)
    except Exception:
        # A handler that raises, such as a mail's that cannot write the error's text, is not the run's failure.
        with suppress(Exception):
            traceback.print_exc()


def _send(signal: Signal, job: str, run_id: int | None, using: str, **more: object) -> list[tuple[Any, Any]]:
    return signal.send_robust(sender=JobRun, job=job, run_id=run_id, using=using, **more)
