"""A failed job's exit code under django-crontab, which catches whatever a job raises and exits with 0."""

from __future__ import annotations

import atexit
import logging
import os
import sys

from django.core.management.base import CommandError


def is_crontab_run() -> bool:
    """Whether this process is django-crontab's `manage.py crontab run <hash>`, as its crontab lines start it."""
    return sys.argv[1:3] == ["crontab", "run"]


def keep_exit_code(error: BaseException) -> None:
    """Let the process that django-crontab started, and which catches `error` there, exit as it would have without."""
    if is_crontab_run() and (code := _exit_code(error)):
        fail_at_exit(code)


def fail_at_exit(code: int) -> None:
    """Let the process exit with `code`, after everything that wants to happen at its exit has happened."""
    atexit.unregister(_exit)
    atexit.register(_exit, code)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        # As the interpreter reads it: nothing is success, a text is a failure.
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    # A subclass may have left out CommandError's constructor.
    return getattr(error, "returncode", 1) if isinstance(error, CommandError) else 1


def _exit(code: int) -> None:
    # An exit handler cannot change the exit code, so this one runs the others, which come after it, and exits.
    atexit.unregister(_exit)
    try:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)
