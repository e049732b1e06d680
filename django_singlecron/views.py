"""The check over HTTP, for monitors that ask by a URL."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import watch
from .tokens import has_valid_token


@transaction.non_atomic_requests
@never_cache
@require_safe
def check(request: HttpRequest) -> HttpResponse:
    """Give what `singlecron check --json` prints: 200 when all is well, else 503. It writes nothing and mails nothing.

    To a token of `SINGLECRON["TOKENS"]`, or to a staff user who is logged in.
    """
    refusal = None if has_valid_token(request) else _refuse_all_but_staff(request)
    if refusal is not None:
        return refusal
    report = watch.check(watch.Look())
    return JsonResponse(report.as_dict(), status=503 if report.severity else 200)


def _refuse_all_but_staff(request: HttpRequest) -> HttpResponse | None:
    user = getattr(request, "user", None)  # without the authentication's middleware there is none
    if user is None or not user.is_authenticated:
        refusal = JsonResponse({"error": "A token is needed, or a staff user's session."}, status=401)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal
    if user.is_active and user.is_staff:
        return None
    return JsonResponse({"error": "Only staff may see this."}, status=403)
