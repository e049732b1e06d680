"""The admin's list of runs, which asks the history only what an index answers, however long that is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core import paginator
from django.db.models import Max, Min, Q, TextChoices
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from . import monitoring
from .models import JobRun, JobRunQuerySet

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    Paginator = paginator.Paginator[JobRun]
else:
    Paginator = paginator.Paginator

PAGES_AHEAD = 10
MOST_PAGES = 200
MOST_JOBS = 100

# Filters without an index of their own look through so many of the newest ids: some 50 ms when none matches.
WINDOW = 100_000

_NEWEST_FIRST = ("-pk",)


class LookAheadPaginator(Paginator):
    """Knows of the pages up to ten ahead, from reading their ids. Counts nothing beyond."""

    def __init__(self, *args: Any, page: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._end = min(max(page, 1) + PAGES_AHEAD, MOST_PAGES) * self.per_page

    @cached_property
    def _found(self) -> int:
        queryset: Any = self.object_list
        return len(queryset.values_list("pk")[: self._end + 1])

    @cached_property
    def count(self) -> int:
        """How many rows the pages hold that can be chosen."""
        return min(self._found, self._end)

    @property
    def has_more(self) -> bool:
        """Whether there are rows that `count` leaves out."""
        return self._found > self._end

    @property
    def is_at_its_end(self) -> bool:
        """Whether those rows stay out of reach."""
        return self.has_more and self._end == MOST_PAGES * self.per_page


class Calendar:
    """What Django's date hierarchy asks of a queryset, answered from the first and the last date in the history.

    Django's own question is a DISTINCT over every row.
    """

    def __init__(self, first: datetime | None, last: datetime | None, year: str | None, month: str | None) -> None:
        self.first = first
        self.last = last
        self._year = year
        self._month = month

    def aggregate(self, **expressions: object) -> dict[str, datetime | None]:
        """Return when the first and the last run started."""
        return {"first": self.first, "last": self.last}

    def datetimes(self, field: str, kind: str) -> list[date]:
        """Return the first day of each period of the history: its days, months or years, within what is chosen."""
        return list(self._periods(kind))

    def _periods(self, kind: str) -> Iterator[date]:
        if self.first is None or self.last is None:
            return
        first, last = local(self.first).date(), local(self.last).date()
        for ordinal in range(first.toordinal(), last.toordinal() + 1):
            day = date.fromordinal(ordinal)
            begins = day == first or kind == "day" or (day.day == 1 and (kind == "month" or day.month == 1))
            if begins and self._is_chosen(day):
                yield day

    def _is_chosen(self, day: date) -> bool:
        return str(day.year) == (self._year or str(day.year)) and str(day.month) == (self._month or str(day.month))


class RunList(ChangeList):
    """The list: newest first, without its large columns, and with killed runs shown as what they are."""

    def get_filters(self, request: HttpRequest) -> Any:
        """Refuse a month or a day without its year: it would read every row."""
        found = super().get_filters(request)
        remaining = found[2]
        if any(f"{self.date_hierarchy}__{part}" in remaining for part in ("month", "day")):
            raise IncorrectLookupParameters
        return found

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Leave the large columns unread."""
        queryset: Any = super().get_queryset(request, exclude_parameters)
        return queryset.without_texts()

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        """Order by the column that narrows the rows down, then the id: each way the newest come first."""
        if any(name.startswith(f"{self.date_hierarchy}__") for name in self.params):
            return ["-started_at", "-pk"]
        return list(queryset.query.order_by) or list(_NEWEST_FIRST)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        live = monitoring.look(self.root_queryset.db)
        super().get_results(request)
        # Equal to the count of what is shown, so that the search form does not call it the number of results.
        self.full_result_count = self.result_count
        self.result_list: Any = monitoring.tell_lost(self.result_list, live)

    @cached_property
    def calendar(self) -> ChangeList:
        """The list as the date hierarchy needs it."""
        ends = self.root_queryset.aggregate(first=Min("started_at"), last=Max("started_at"))
        chosen = [self.params.get(f"{self.date_hierarchy}__{part}") for part in ("year", "month")]
        shown: Any = copy.copy(self)
        shown.queryset = Calendar(ends["first"], ends["last"], *chosen)
        return shown  # type: ignore[no-any-return]

    @property
    def window(self) -> int | None:
        """How many of the newest ids a filter confined itself to; None when every row was looked at."""
        return WINDOW if any(getattr(spec, "is_confined", False) for spec in self.filter_specs) else None


class JobFilter(admin.SimpleListFilter):
    """By job: the first hundred names, found by two index seeks each."""

    title = _("job")
    parameter_name = "job"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrOrPromise]]:
        names = list(newest_by_job(model_admin.get_queryset(request)))[:MOST_JOBS]
        chosen = self.value()
        if chosen is not None and chosen not in names:
            names.insert(0, chosen)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        job = self.value()
        if job is None:
            return queryset
        # PostgreSQL's texts hold no NUL, and to ask for one is an error.
        return queryset.none() if "\0" in job else only(queryset, "job", job)


class _ChoiceFilter(admin.SimpleListFilter):
    """By a column with choices; any other value is as good as none."""

    values: type[TextChoices]
    is_confined = False

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, _StrOrPromise]]:
        return list(self.values.choices)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None or value not in self.values.values:
            return queryset
        return self.choose(request, queryset, value)

    def choose(self, request: HttpRequest, queryset: Any, value: str) -> Any:
        return self.confine(request, queryset).filter(**{str(self.parameter_name): value})

    def confine(self, request: HttpRequest, queryset: Any) -> Any:
        """Confine a question that no index answers to the newest rows, or to those of the dates that are chosen."""
        if any(name.startswith("started_at__") for name in request.GET):
            return queryset
        newest = queryset.model.objects.using(queryset.db).aggregate(newest=Max("pk"))["newest"] or 0
        self.is_confined = newest > WINDOW
        return queryset.filter(pk__gt=newest - WINDOW) if self.is_confined else queryset


class StatusFilter(_ChoiceFilter):
    """By status, where a run that was killed counts as lost before an attempt has found it out."""

    title = _("status")
    parameter_name = "status"
    values = JobRun.Status

    def choose(self, request: HttpRequest, queryset: Any, value: str) -> Any:
        if value == JobRun.Status.LOST and (unrecorded := monitoring.unrecorded_losses(queryset.db)):
            return queryset.filter(Q(status=value) | Q(pk__in=unrecorded))
        if value == JobRun.Status.RUNNING:
            queryset = queryset.exclude(pk__in=monitoring.unrecorded_losses(queryset.db))
        return only(queryset, "status", value)


class OutcomeFilter(_ChoiceFilter):
    """By outcome; `skipped` is a status as well, and that has an index."""

    title = _("outcome")
    parameter_name = "outcome"
    values = JobRun.Outcome

    def choose(self, request: HttpRequest, queryset: Any, value: str) -> Any:
        if value == JobRun.Outcome.SKIPPED:
            return only(queryset, "status", JobRun.Status.SKIPPED)
        return super().choose(request, queryset, value)


class SkipReasonFilter(_ChoiceFilter):
    """By the reason of a skip."""

    title = _("skip reason")
    parameter_name = "skip_reason"
    values = JobRun.SkipReason

    def choose(self, request: HttpRequest, queryset: Any, value: str) -> Any:
        return self.confine(request, queryset).filter(status=JobRun.Status.SKIPPED, skip_reason=value)


class TriggerFilter(_ChoiceFilter):
    """By how the attempt was started."""

    title = _("started by")
    parameter_name = "trigger"
    values = JobRun.Trigger


def newest_by_job(queryset: JobRunQuerySet) -> dict[str, int]:
    """Return the number of the newest run of each job in the history, by the job."""
    return dict(queryset.latest_per_job().values_list("job", "pk"))


def only(queryset: Any, column: str, value: str) -> Any:
    """Return the rows with `value` in a column that has an index together with the id, ordered as that is.

    By an equality, the column would be nothing to order by, and the planner might walk all rows from the newest on,
    as far as the last run of a job that is no more. Asked for a range of one value, it cannot.
    """
    rows = queryset.filter(**{f"{column}__gte": value, f"{column}__lte": value})
    return rows.order_by(column, "-pk") if queryset.query.order_by in ((), _NEWEST_FIRST) else rows


def search(queryset: JobRunQuerySet, term: str) -> Any:
    """Return the run whose number `term` is (`12` or `#12`), or else the runs of the jobs whose name holds `term`.

    The names are searched here, not in the rows: there are few of them, and an index finds the rows of each.
    """
    term = term.strip()
    number = term.removeprefix("#")
    if not term:
        return queryset
    if number.isascii() and number.isdecimal():
        # Longer than a 64-bit integer, it is no run's, and Django knows.
        return queryset.filter(pk=int(number[:20]))
    jobs = newest_by_job(JobRun.objects.using(queryset.db))
    found = {job: newest for job, newest in jobs.items() if term.casefold() in job.casefold()}
    if len(found) == 1:
        return only(queryset, "job", *found)
    # From the newest of them on: jobs that are no more have nothing after it.
    return queryset.filter(job__in=found, pk__lte=max(found.values())) if found else queryset.none()


def requested_page(request: HttpRequest) -> int:
    """Return the number of the page that is asked for."""
    try:
        return int(request.GET.get(PAGE_VAR, 1))
    except ValueError:
        return 1


def local(moment: datetime) -> datetime:
    """Return the moment in the time zone that the page is shown in, if the project has time zones."""
    return timezone.localtime(moment) if timezone.is_aware(moment) else moment
