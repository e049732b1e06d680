"""django-crontab for real: its lines in a crontab, run by a shell as cron runs them."""

import re
from pathlib import Path

import pytest

from django_singlecron.models import JobRun
from testproject.billing.models import Tenant
from tests.support.crontab import write_program
from tests.support.replicas import Replica, Replicas

pytestmark = pytest.mark.django_db(transaction=True)


class Crontab:
    """A table of cron jobs of its own, filled by `manage.py crontab add`."""

    def __init__(self, replicas: Replicas, directory: Path) -> None:
        self._replicas = replicas
        self._table = directory / "table"
        self._program = directory / "crontab"
        write_program(self._program, self._table)
        self.manage("add")

    def manage(self, subcommand: str) -> str:
        replica = self._replicas.manage("crontab", subcommand, TEST_CRONTAB=str(self._program))
        assert replica.end() == 0, replica.err
        return replica.out

    def start(self, job: str) -> Replica:
        """Run the line of a job as cron would."""
        [found] = re.findall(rf"^(\w+) -> \('[^']*', '{re.escape(job)}'\)$", self.manage("show"), re.MULTILINE)
        [line] = [line for line in self._table.read_text().splitlines() if f"crontab run {found} " in line]
        command = line.split(maxsplit=5)[5].partition(" # ")[0]
        return self._replicas.start("/bin/sh", "-c", command)


@pytest.fixture
def crontab(replicas: Replicas, tmp_path: Path) -> Crontab:
    return Crontab(replicas, tmp_path)


def test_a_job_that_raises_exits_with_1_and_is_recorded_as_failed(crontab: Crontab) -> None:
    cron = crontab.start("tests.jobs.cron.fail")
    assert cron.end() == 1
    run = JobRun.objects.get()
    assert (run.job, run.status, run.error_class) == ("tests.jobs.cron.fail", "failed", "RuntimeError")
    assert run.error_message == "the job went wrong"
    assert "RuntimeError: the job went wrong" in run.traceback
    assert (run.trigger, run.command) == ("function", "manage.py crontab")
    assert Tenant.objects.count() == 0


def test_a_job_that_succeeds_exits_with_0(crontab: Crontab) -> None:
    cron = crontab.start("tests.jobs.cron.add_tenant")
    assert cron.end() == 0, cron.err
    assert JobRun.objects.get().status == "succeeded"
    assert Tenant.objects.count() == 1
