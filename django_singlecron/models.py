"""The history: one `JobRun` for each attempt to run a job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import F, Q
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext_lazy as _

from .keys import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from typing_extensions import Self


# An attempt between its probe and its lock still reads "running" with no lock held. One that is older was killed,
# or was stopped so long that its own last word will come later, and puts the record right. Likewise one that began in
# the future: the server's clock was set back since. Until then it is in doubt, too, whether it holds the lock.
LOST_AFTER_SECONDS = 10

SLOT_CONSTRAINT = "singlecron_slot"

# DISTINCT ON would read every row; this walks from job to job along the index on (job, id). Ordered by both, since with
# the job alone given, the planner may look for its newest run by walking all runs from the newest on.
_NEWEST_OF_EACH_JOB = """
WITH RECURSIVE newest (id) AS (
    SELECT (SELECT id FROM django_singlecron_jobrun ORDER BY job, id DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT run.id FROM django_singlecron_jobrun AS run
            WHERE run.job > (SELECT job FROM django_singlecron_jobrun WHERE id = newest.id)
            ORDER BY run.job, run.id DESC LIMIT 1)
    FROM newest WHERE newest.id IS NOT NULL
)
SELECT id FROM newest WHERE id IS NOT NULL
"""


class JobRunQuerySet(models.QuerySet["JobRun"]):
    """The questions that the history answers."""

    def acquired(self) -> Self:
        """Attempts that got the lock, whatever became of them."""
        return self.filter(outcome=JobRun.Outcome.ACQUIRED)

    def skipped(self) -> Self:
        """Attempts that did not run."""
        return self.filter(outcome=JobRun.Outcome.SKIPPED)

    def running(self) -> Self:
        """Attempts that have not ended, or were killed and not yet found out."""
        return self.filter(status=JobRun.Status.RUNNING)

    def succeeded(self) -> Self:
        """Runs whose work is committed."""
        return self.filter(status=JobRun.Status.SUCCEEDED)

    def failed(self) -> Self:
        """Runs that raised, and whose work is rolled back."""
        return self.filter(status=JobRun.Status.FAILED)

    def lost(self) -> Self:
        """Runs that lost their lock or their process before they ended."""
        return self.filter(status=JobRun.Status.LOST)

    def for_job(self, job: str) -> Self:
        """Attempts of one job, the newest first."""
        return self.filter(job=job).order_by("-id")

    def latest_per_job(self) -> Self:
        """The newest attempt of each job in the history, by job: two index seeks a job, whatever the number of rows."""
        return self.filter(pk__in=RawSQL(_NEWEST_OF_EACH_JOB, ())).order_by("job")

    def without_texts(self) -> Self:
        """Leave the large columns unread until they are asked for."""
        return self.defer("arguments", "error_message", "traceback", "output")


class JobRun(models.Model):
    """One attempt to run a job: who tried, where, when, and what became of it.

    The row is committed before the job starts. `succeeded` is written in the job's own transaction, so it is
    true exactly when the job's writes are committed.
    """

    class Outcome(models.TextChoices):
        ACQUIRED = "acquired", _("acquired")
        SKIPPED = "skipped", _("skipped")

    class Status(models.TextChoices):
        RUNNING = "running", _("running")
        SUCCEEDED = "succeeded", _("succeeded")
        FAILED = "failed", _("failed")
        LOST = "lost", _("lost")
        SKIPPED = "skipped", _("skipped")

    class SkipReason(models.TextChoices):
        LOCKED = "locked", _("another run holds the lock")
        ALREADY_RAN = "already_ran", _("a run of this slot succeeded")
        TOO_SOON = "too_soon", _("the last run started too short a time ago")

    class Trigger(models.TextChoices):
        COMMAND_LINE = "command_line", _("command line")
        FUNCTION = "function", _("function call")

    class LockKind(models.TextChoices):
        TRANSACTION = "transaction", _("transaction-level advisory lock")
        NONE = "none", _("no lock")

    id = models.BigAutoField(_("run"), primary_key=True)
    job = models.CharField(_("job"), max_length=MAX_NAME_LENGTH)
    key = models.BigIntegerField(_("lock key"), null=True)
    key_is_pair = models.BooleanField(_("key is a pair"), db_default=False)
    lock = models.CharField(_("lock"), max_length=12, choices=LockKind, db_default=LockKind.TRANSACTION)
    slot = models.DateTimeField(_("slot"), null=True)
    forced = models.BooleanField(_("forced"), db_default=False)
    arguments = models.TextField(_("arguments"), db_default="")
    outcome = models.CharField(_("outcome"), max_length=8, choices=Outcome)
    skip_reason = models.CharField(_("skip reason"), max_length=20, choices=SkipReason, db_default="")
    status = models.CharField(_("status"), max_length=9, choices=Status)
    held_by = models.ForeignKey(
        "self",
        verbose_name=_("held by"),
        null=True,
        on_delete=models.SET_NULL,
        related_name="blocked",
        # No constraint: checking it would lock the holder's row, which the holder is about to update.
        db_constraint=False,
        db_index=False,
    )
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    trigger = models.CharField(_("started by"), max_length=12, choices=Trigger)
    command = models.CharField(_("command"), max_length=255, db_default="")
    started_at = models.DateTimeField(_("started"))
    finished_at = models.DateTimeField(_("finished"), null=True)
    error_class = models.CharField(_("error class"), max_length=200, db_default="")
    error_message = models.TextField(_("error message"), db_default="")
    traceback = models.TextField(_("traceback"), db_default="")
    output = models.TextField(_("output"), db_default="")
    token = models.BigIntegerField(_("fencing token"), null=True)
    backend_pid = models.IntegerField(_("server process id"), null=True)

    objects = JobRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("job run")
        verbose_name_plural = _("job runs")
        get_latest_by = "id"
        indexes = (
            models.Index(F("job"), F("id").desc(), name="singlecron_job"),
            models.Index(F("status"), F("id").desc(), name="singlecron_status"),
            models.Index("started_at", name="singlecron_started"),
            # The runs of a key that may hold its lock: asked at every attempt, and a handful of rows at any time.
            models.Index("key", condition=Q(status="running"), name="singlecron_running"),
            # The runs of a job, however many attempts were skipped between them.
            models.Index(F("job"), F("id").desc(), condition=Q(outcome="acquired"), name="singlecron_acquired"),
            # What became of each slot, however often it was tried.
            models.Index(
                F("job"),
                F("slot"),
                F("outcome"),
                F("id").desc(),
                condition=Q(slot__isnull=False),
                name="singlecron_job_slot",
            ),
            # Deleting a run sets this to NULL in the rows that it held up.
            models.Index("held_by", condition=Q(held_by__isnull=False), name="singlecron_held_by"),
        )
        constraints = (
            # A job succeeds at most once per slot, whatever became of its lock.
            models.UniqueConstraint(
                fields=("job", "slot"),
                condition=Q(status="succeeded", slot__isnull=False),
                name=SLOT_CONSTRAINT,
            ),
        )

    def __str__(self) -> str:
        return f"{self.job} #{self.pk} {self.status}"

    @property
    def duration(self) -> timedelta | None:
        """How long it took by the database's clock; None while it runs and for what was skipped at once."""
        if self.finished_at is None or self.outcome == self.Outcome.SKIPPED:
            return None
        return self.finished_at - self.started_at

    @property
    def key_pair(self) -> tuple[int, int] | None:
        """The two 32-bit integers of a key that is a pair; None for any other key."""
        if self.key is None or not self.key_is_pair:
            return None
        low = self.key & 0xFFFF_FFFF
        return self.key >> 32, low - (1 << 32) if low >= 1 << 31 else low


class JobWatch(models.Model):
    """What `singlecron check` keeps in mind of a job from one time to the next."""

    job = models.CharField(_("job"), max_length=MAX_NAME_LENGTH, unique=True)
    schedule = models.TextField(_("schedule"), db_default="")
    watched_since = models.DateTimeField(_("watched since"))
    problem = models.TextField(_("problem"), db_default="")
    changed_at = models.DateTimeField(_("problem since"), null=True)

    class Meta:
        verbose_name = _("watched job")
        verbose_name_plural = _("watched jobs")

    def __str__(self) -> str:
        return f"{self.job}: {self.problem or 'well'}"
