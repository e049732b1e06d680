"""Jobs over HTTP, for schedulers that call a URL."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management.base import CommandError
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.utils.dateparse import parse_datetime
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from . import invoke, registry
from .conf import get_settings
from .exceptions import DatabaseUnavailable, InvalidSlot, RunRefused
from .interrupts import Terminated
from .task import Request, SingletonTask
from .tokens import has_valid_token

logger = logging.getLogger("django_singlecron")

View = Callable[..., HttpResponse]

# Of every command, and about the process rather than the job.
_NO_ARGUMENTS = {"stdout", "stderr", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks"}


class BadRequest(Exception):
    """The request's body asks for nothing that the job can do. The message says why."""


class Asked(NamedTuple):
    """What the body of a request asks for."""

    force: bool = False
    slot: datetime | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012  # read only


def outside_transactions(view: View) -> View:
    """Let no database's ATOMIC_REQUESTS wrap the view, since a job has a transaction of its own."""
    for alias in settings.DATABASES:
        view = transaction.non_atomic_requests(alias)(view)
    return view


@csrf_exempt
@never_cache
@outside_transactions
def run(request: HttpRequest, job: str) -> HttpResponse:
    """Run a job that opted in with `http=True`, for a POST with a token; answer in JSON when it has ended."""
    if not get_settings().tokens:
        raise Http404
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not has_valid_token(request):
        challenge = {"WWW-Authenticate": 'Bearer realm="singlecron"'}
        return JsonResponse({"error": "A valid bearer token is needed."}, status=401, headers=challenge)
    task = registry.find(job)
    if task is None or not task.options.http:
        return JsonResponse({"error": "No job of this name may be run over HTTP."}, status=404)
    try:
        asked = _read(request.body, task)
        return _run(task, asked)
    except (BadRequest, InvalidSlot, invoke.WrongArguments) as error:
        return JsonResponse({"error": str(error)}, status=400)


def _run(task: SingletonTask[Any, Any], asked: Asked) -> JsonResponse:
    acquired: list[int] = []
    call = Request(force=asked.force, slot=asked.slot, on_acquired=acquired.append)
    try:
        result = invoke.start(task, call, asked.args, asked.kwargs).result
    except (Terminated, invoke.WrongArguments):
        raise
    except (Exception, SystemExit) as error:
        if not acquired:
            return _not_run(task, error)
        if not (isinstance(error, SystemExit) and error.code in (None, 0)):
            # The run's record and the log have the rest.
            ended = {"ran": True, "run_id": acquired[0], "outcome": "acquired", "error": type(error).__name__}
            return JsonResponse(ended, status=500)
        return JsonResponse({"ran": True, "run_id": acquired[0], "outcome": "acquired"})
    if result.ran:
        return JsonResponse({"ran": True, "run_id": result.run_id, "outcome": result.outcome})
    return JsonResponse(
        {"ran": False, "reason": result.skip_reason, "held_by": result.held_by, "run_id": result.run_id}
    )


def _not_run(task: SingletonTask[Any, Any], error: BaseException) -> JsonResponse:
    """Say that nothing ran, and leave why to the log: a database's own words may name its host and role."""
    if isinstance(error, CommandError) and isinstance(error.__cause__, RunRefused):
        error = error.__cause__
    refused = isinstance(error, RunRefused)
    message = 'Job "%s" did not run for a request: %s'
    logger.error(message, task.name, error, exc_info=None if refused else error, extra={"job": task.name})
    status = 503 if isinstance(error, DatabaseUnavailable) else 409 if refused else 500
    return JsonResponse({"ran": False, "run_id": None, "error": type(error).__name__}, status=status)


def _read(body: bytes, task: SingletonTask[Any, Any]) -> Asked:
    if not body.strip():
        return Asked()
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("The body is no JSON.") from error
    if not isinstance(read, dict):
        raise BadRequest("The body is no JSON object.")
    unknown = ", ".join(sorted(map(repr, read.keys() - {"slot", "force", "arguments"})))
    if unknown:
        raise BadRequest(f"The body has unknown keys: {unknown}. It may hold slot, force and arguments.")
    force, arguments = read.get("force", False), read.get("arguments", {})
    if not isinstance(force, bool):
        raise BadRequest("force is neither true nor false.")
    slot = None if read.get("slot") is None else task.check_slot(_moment(read["slot"]))
    if isinstance(arguments, list):
        return Asked(force, slot, tuple(arguments))
    if not isinstance(arguments, dict):
        raise BadRequest("arguments is neither an object of arguments by name nor a list of them in order.")
    if task.command_class is not None and arguments.keys() & _NO_ARGUMENTS:
        raise BadRequest(f"Not over HTTP: {', '.join(sorted(arguments.keys() & _NO_ARGUMENTS))}.")
    return Asked(force, slot, (), arguments)


def _moment(text: object) -> datetime:
    moment = None
    try:
        moment = parse_datetime(text) if isinstance(text, str) else None
    except ValueError as error:
        raise BadRequest(f"slot is no date and time: {error}.") from error
    if moment is None:
        raise BadRequest("slot is no date and time, such as 2026-10-01T02:00.")
    return moment
