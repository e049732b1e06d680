"""Who may ask over HTTP without being logged in: whoever sends one of the tokens of `SINGLECRON["TOKENS"]`."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from .conf import get_settings


def has_valid_token(request: HttpRequest) -> bool:
    """Whether the request's `Authorization: Bearer` header holds one of the project's tokens; False when it has none.

    How long it takes tells neither a token's text nor which of several fits.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    equal = [constant_time_compare(given.strip(), token) for token in get_settings().tokens]
    return any(equal)
