"""A history as a project with three replicas would have it, for the browser and for the README's pictures."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from django_singlecron.models import JobRun

BILLING = "nightly_billing"
REMINDERS = "testproject.billing.cron.send_reminders"
SESSIONS = "clearsessions"

COMMANDS = {BILLING: "nightly_billing", REMINDERS: "crontab run", SESSIONS: "singlecron run clearsessions"}

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/billing/manage.py", line 14, in <module>
    execute_from_command_line(sys.argv)
  File "/srv/billing/testproject/billing/management/commands/nightly_billing.py", line 16, in handle
    invoices = list(bill_all_tenants())
  File "/srv/billing/testproject/billing/invoicing.py", line 11, in bill_all_tenants
    yield Invoice.objects.create(tenant=tenant, amount=tenant.monthly_fee)
ValueError: Tenant <Umbrella & Sons> has no monthly fee
"""


class _Firing:
    """One firing of a job's cron entry, on each replica."""

    def __init__(self, job: str, at: datetime, key: int, **values: Any) -> None:
        self.at = at
        self.values = {
            "job": job,
            "key": key,
            "trigger": "function" if job == REMINDERS else "command_line",
            "command": f"manage.py {COMMANDS[job]}",
            **values,
        }

    def ran(self, host: str, status: str, took: float | None, **values: Any) -> JobRun:
        finished_at = None if took is None else self.at + timedelta(seconds=took)
        return self._add(host, outcome="acquired", status=status, finished_at=finished_at, **values)

    def skipped(self, host: str, holder: JobRun) -> JobRun:
        return self._add(
            host, outcome="skipped", skip_reason="locked", status="skipped", held_by=holder, finished_at=self.at
        )

    def _add(self, host: str, **values: Any) -> JobRun:
        pid = 20_000 + 997 * (JobRun.objects.order_by("-pk").values_list("pk", flat=True).first() or 0) % 30_000
        return JobRun.objects.create(host=host, pid=pid, started_at=self.at, **{**self.values, **values})


def make_history() -> dict[str, JobRun]:
    """Write the history; return the run that failed, the one that goes on, and one that was killed just now."""
    tonight = datetime.now(tz=timezone.utc).replace(hour=2, minute=0, second=0, microsecond=0)
    for days in (3, 2):
        _nights_work(tonight - timedelta(days=days))
    night = tonight - timedelta(days=1)

    billing = _Firing(BILLING, night, -4867110533924213781, arguments="", backend_pid=71_204)
    failed = billing.ran(
        "web-2",
        "failed",
        3.417,
        token=104_233,
        error_class="ValueError",
        error_message="Tenant <Umbrella & Sons> has no monthly fee",
        traceback=TRACEBACK,
        output="Billing 120 tenants.\n87 invoices written so far.\n",
    )
    for host in ("web-1", "web-3"):
        billing.skipped(host, failed)
    again = _Firing(BILLING, night + timedelta(minutes=30), billing.values["key"])
    ran = again.ran("web-1", "succeeded", 5.1, token=104_240, output="120 invoices written.\n")
    for host in ("web-2", "web-3"):
        again.skipped(host, ran)
    _reminders(night + timedelta(hours=1))

    sessions = _Firing(SESSIONS, night + timedelta(hours=1, minutes=30), 8211904411270115233)
    lost = sessions.ran(
        "web-3", "lost", 1_800, error_message="The process that ran the job ended without a word: it was killed."
    )
    for host in ("web-1", "web-2"):
        sessions.skipped(host, lost)
    killed = _Firing(SESSIONS, night + timedelta(hours=2), 8211904411270115233).ran("web-3", "running", None)

    # Without a lock, so that it need not be held while the page is looked at.
    now = datetime.now(tz=timezone.utc) - timedelta(seconds=42)
    latest = _Firing(REMINDERS, now, 5093340117788231977)
    running = latest.ran("web-1", "running", None, lock="none", output="")
    for host in ("web-2", "web-3"):
        latest.skipped(host, running)
    return {"failed": failed, "running": running, "killed": killed}


def _nights_work(night: datetime) -> None:
    billing = _Firing(BILLING, night, -4867110533924213781)
    ran = billing.ran("web-3", "succeeded", 4.8, output="120 invoices written.\n")
    for host in ("web-1", "web-2"):
        billing.skipped(host, ran)
    _reminders(night + timedelta(hours=1))


def _reminders(at: datetime) -> None:
    firing = _Firing(REMINDERS, at, 5093340117788231977)
    ran = firing.ran("web-2", "succeeded", 0.214, output="WARNING 37 reminders sent.\n")
    for host in ("web-1", "web-3"):
        firing.skipped(host, ran)
