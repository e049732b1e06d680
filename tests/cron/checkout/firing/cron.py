"""Jobs that are due each minute."""

import shutil
import threading

from django.conf import settings

from django_singlecron import current_run, singleton_task
from testproject.billing.models import Tenant

KILLED_WITHIN = 50


def work() -> None:
    run = current_run()
    # Not ASCII, as the output of a job in a world without a locale.
    print(f"{run.name}: 5 €")
    Tenant.objects.create(name=f"{run.name} {run.slot.isoformat()} für 5 €", monthly_fee=5)


@singleton_task("quick", schedule="* * * * *")
def quick() -> None:
    # As it was before Django added to it.
    shutil.copy("/proc/self/environ", settings.ENVIRONMENT)
    work()


@singleton_task("hanging", schedule="* * * * *")
def hanging() -> None:
    work()
    try:
        settings.HANG.unlink()
    except FileNotFoundError:
        return
    threading.Event().wait(KILLED_WITHIN)
    raise AssertionError("nobody killed it")
