"""Functions that django-crontab calls."""

from django_singlecron import singleton_task
from testproject.billing.models import Tenant


@singleton_task
def fail() -> None:
    add_tenant.func()
    raise RuntimeError("the job went wrong")


@singleton_task
def add_tenant() -> None:
    Tenant.objects.create(name="of cron", monthly_fee=1)
