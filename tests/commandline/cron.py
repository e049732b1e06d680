"""Functions that django-crontab calls."""

import atexit
import sys

from django_singlecron import singleton_task


@singleton_task("cron.succeed")
def succeed() -> None:
    print("done")


@singleton_task("cron.fail")
def fail() -> None:
    atexit.register(print, "the job's own exit handler")
    raise RuntimeError("out of ink")


@singleton_task("cron.leave_with:{code}")
def leave_with(code: int) -> None:
    sys.exit(code)


@singleton_task("cron.read_a_line", schedule="0 2 * * *", timezone="Europe/Berlin")
def read_a_line() -> str:
    return sys.stdin.readline().strip()
