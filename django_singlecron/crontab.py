"""A failed job's exit code under django-crontab, which catches whatever a job raises and exits with 0."""

from __future__ import annotations

import atexit
import logging
import os
import sys


def is_crontab_run() -> bool:
    """Whether this process is django-crontab's `manage.py crontab run <hash>`, as its crontab lines start it."""
    return sys.argv[1:3] == ["crontab", "run"]


def fail_at_exit() -> None:
    """Let the process exit with 1, after everything that wants to happen at its exit has happened."""
    atexit.unregister(_exit_failed)
    atexit.register(_exit_failed)


def _exit_failed() -> None:
    # An exit handler cannot change the exit code, so this one runs the others, which come after it, and exits.
    atexit.unregister(_exit_failed)
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
