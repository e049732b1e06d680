"""The history in Django's admin: to look at, not to change."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import F, Value
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from . import monitoring
from .admin_list import (
    JobFilter,
    LookAheadPaginator,
    OutcomeFilter,
    RunList,
    SkipReasonFilter,
    StatusFilter,
    TriggerFilter,
    local,
    requested_page,
    search,
)
from .conf import get_settings
from .models import JobRun, JobRunQuerySet

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[JobRun]
else:
    ModelAdmin = admin.ModelAdmin

MOST_HELD_UP = 20

NOTHING = "-"
_BREAK = mark_safe(".<wbr>")

# What the page's address may ask for beside the filters: what an index answers.
_LOOKUPS = {"held_by", "started_at__year", "started_at__month", "started_at__day"}

# The page of one run: the titles of its sections, and what stands in each of their lines.
_SECTIONS: tuple[tuple[Any, tuple[tuple[str, ...], ...]], ...] = (
    (
        None,
        (
            ("job_link", "outcome_badge", "status_badge"),
            ("slot_exactly", "forced_text"),
            ("skip_reason", "held_by_link", "held_up"),
        ),
    ),
    (
        _("When, where and by what"),
        (("started_exactly", "finished", "took"), ("host", "process", "trigger"), ("command",), ("arguments_text",)),
    ),
    (_("Error"), (("error_class",), ("error_message_text",), ("traceback_text",))),
    (_("Output"), (("output_text",),)),
    (_("Lock"), (("lock", "key_text", "token_text"), ("backend_pid_text",))),
)


@admin.register(JobRun)
class JobRunAdmin(ModelAdmin):
    """Shows the attempts to those who may view them. Nobody adds, changes or deletes one here, and nothing is written.

    A run that was killed reads "running" in its row until the next attempt finds it out; here it is shown as lost.
    """

    list_display = (
        "run",
        "job_name",
        "outcome_badge",
        "status_badge",
        "started",
        "took",
        "host",
        "process",
        "held_by_link",
    )
    list_display_links = ("run",)
    list_filter = (JobFilter, StatusFilter, OutcomeFilter, SkipReasonFilter, TriggerFilter)
    date_hierarchy = "started_at"
    search_fields = ("job",)
    search_help_text = _("Part of a job's name, or the number of a run.")
    list_per_page = 50
    sortable_by = ()
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = LookAheadPaginator
    actions = None
    fieldsets = tuple((title, {"fields": lines}) for title, lines in _SECTIONS)
    readonly_fields = tuple(name for _title, lines in _SECTIONS for line in lines for name in line)

    class Media:
        css = {"all": ("django_singlecron/admin.css",)}  # noqa: RUF012  # as Django declares it

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: jobs add their runs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: JobRun | None = None) -> bool:
        """Nobody: the history is what happened."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: JobRun | None = None) -> bool:
        """Nobody, through the admin."""
        return False

    def get_queryset(self, request: HttpRequest) -> JobRunQuerySet:
        """Read the history of the database that jobs use by default."""
        return JobRun.objects.using(get_settings().database)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobRun | None:
        """Return one run, killed or not."""
        live = monitoring.look(get_settings().database)
        run = super().get_object(request, object_id, from_field)
        return run and monitoring.tell_lost([run], live)[0]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RunList]:
        """Return the class of the list."""
        return RunList

    def get_paginator(self, request: HttpRequest, *args: Any, **kwargs: Any) -> LookAheadPaginator:
        """Return a paginator that looks ahead of the page that is asked for."""
        return LookAheadPaginator(*args, page=requested_page(request), **kwargs)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Search by job and by number."""
        return search(queryset, search_term), False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Refuse questions that no index answers."""
        return lookup in _LOOKUPS or lookup in {kind.parameter_name for kind in self.list_filter}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. It takes no actions, so nothing may be posted to it."""
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    @admin.display(description=_("run"))
    def run(self, run: JobRun) -> str:
        return f"#{run.pk}"

    @admin.display(description=_("job"))
    def job_name(self, run: JobRun) -> SafeString:
        # A long one breaks after a dot.
        return format_html_join(_BREAK, "{}", ((part,) for part in run.job.split(".")))

    @admin.display(description=_("job"))
    def job_link(self, run: JobRun) -> SafeString:
        return format_html('<a href="{}">{}</a>', self._list_url(job=run.job), run.job)

    @admin.display(description=_("outcome"))
    def outcome_badge(self, run: JobRun) -> SafeString:
        return _badge(run.outcome, run.get_outcome_display())

    @admin.display(description=_("status"))
    def status_badge(self, run: JobRun) -> SafeString:
        badge = _badge(run.status, run.get_status_display())
        if run.status == JobRun.Status.LOST and run.finished_at is None:
            note = gettext("not yet recorded")
            return format_html('{} <span class="singlecron-note">({})</span>', badge, note)
        return badge

    @admin.display(description=_("duration"))
    def took(self, run: JobRun) -> str:
        if run.status == JobRun.Status.RUNNING:
            return gettext("%(duration)s so far") % {"duration": _in_words(timezone.now() - run.started_at)}
        if run.duration is None:
            return NOTHING
        if run.status == JobRun.Status.LOST and not run.error_class:
            # Its process had no last word: the row has the time at which somebody noticed.
            return gettext("at most %(duration)s") % {"duration": _in_words(run.duration)}
        return _in_words(run.duration)

    @admin.display(description=_("started"))
    def started(self, run: JobRun) -> str:
        return _moment(run.started_at)

    @admin.display(description=_("started"))
    def started_exactly(self, run: JobRun) -> str:
        return _exactly(run.started_at)

    @admin.display(description=_("finished"))
    def finished(self, run: JobRun) -> str:
        return _exactly(run.finished_at)

    @admin.display(description=_("slot"))
    def slot_exactly(self, run: JobRun) -> str:
        return _exactly(run.slot)

    @admin.display(description=_("forced"))
    def forced_text(self, run: JobRun) -> str:
        # In words: Django's red cross would look like a failure.
        return gettext("yes") if run.forced else gettext("no")

    @admin.display(description=_("held by"))
    def held_by_link(self, run: JobRun) -> str:
        return NOTHING if run.held_by_id is None else self._link(run.held_by_id)

    @admin.display(description=_("held up"))
    def held_up(self, run: JobRun) -> str:
        """Name the attempts that were skipped because of this run."""
        # Ordered by what is no column, so that the index on held_by finds the rows, not a walk along the ids.
        blocked = JobRun.objects.using(get_settings().database).filter(held_by=run.pk).order_by(F("pk") + Value(0))
        found = list(blocked.values_list("pk", "host")[: MOST_HELD_UP + 1])
        if not found:
            return NOTHING
        links = format_html_join(", ", "{} ({})", ((self._link(pk), host) for pk, host in found[:MOST_HELD_UP]))
        if len(found) <= MOST_HELD_UP:
            return links
        return format_html('{}, <a href="{}">{}</a>', links, self._list_url(held_by=run.pk), gettext("and more"))

    @admin.display(description=_("arguments"))
    def arguments_text(self, run: JobRun) -> str:
        return _preformatted(run.arguments)

    @admin.display(description=_("error message"))
    def error_message_text(self, run: JobRun) -> str:
        return _preformatted(run.error_message)

    @admin.display(description=_("traceback"))
    def traceback_text(self, run: JobRun) -> str:
        return _preformatted(run.traceback)

    @admin.display(description=_("output"))
    def output_text(self, run: JobRun) -> str:
        return _preformatted(run.output)

    @admin.display(description=_("lock key"))
    def key_text(self, run: JobRun) -> str:
        if run.key_pair is not None:
            return "{}, {}".format(*run.key_pair)
        return _number(run.key)

    # Numbers that name something are not grouped by thousands.

    @admin.display(description=_("pid"))
    def process(self, run: JobRun) -> str:
        return _number(run.pid)

    @admin.display(description=_("fencing token"))
    def token_text(self, run: JobRun) -> str:
        return _number(run.token)

    @admin.display(description=_("server process id"))
    def backend_pid_text(self, run: JobRun) -> str:
        return _number(run.backend_pid)

    def _link(self, run_id: int) -> SafeString:
        return format_html('<a href="{}">#{}</a>', self._url("change", run_id), run_id)

    def _list_url(self, **filters: str | int) -> str:
        return f"{self._url('changelist')}?{urlencode(filters)}"

    def _url(self, page: str, *args: int) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)


def _badge(kind: str, text: str) -> SafeString:
    return format_html('<span class="singlecron-badge singlecron-{}">{}</span>', kind, text)


def _preformatted(text: str) -> str:
    # A browser drops the first line break after <pre>: this one, not the text's own.
    return format_html('<pre class="singlecron-text">\n{}</pre>', text) if text else NOTHING


def _number(number: int | None) -> str:
    return NOTHING if number is None else str(number)


def _moment(moment: datetime) -> str:
    return local(moment).strftime("%Y-%m-%d %H:%M:%S")


def _exactly(moment: datetime | None) -> str:
    if moment is None:
        return NOTHING
    there = local(moment)
    return f"{_moment(moment)}.{there.microsecond // 1000:03} {there.strftime('%Z')}".strip()


def _in_words(duration: timedelta) -> str:
    """Say a duration with its two largest units; below a minute, in seconds and milliseconds."""
    seconds = max(duration.total_seconds(), 0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
