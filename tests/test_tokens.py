"""Tokens: the right one lets in, whichever of several it is; anything else does not."""

from __future__ import annotations

import pytest
from django.test import RequestFactory, override_settings

from django_singlecron.tokens import has_valid_token


def given(authorization: str | None) -> bool:
    headers = {} if authorization is None else {"Authorization": authorization}
    return has_valid_token(RequestFactory().get("/", headers=headers))


@pytest.mark.parametrize("authorization", ["Bearer old", "Bearer new", "bearer new", "Bearer  new "])
def test_each_token_lets_in(authorization: str) -> None:
    with override_settings(SINGLECRON={"TOKENS": ["old", "new"]}):
        assert given(authorization)


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer ne", "Bearer newer", "Basic new", "new", "Bearer ñew", "Bearer NEW"],
)
def test_anything_else_does_not(authorization: str | None) -> None:
    with override_settings(SINGLECRON={"TOKENS": ["old", "new"]}):
        assert not given(authorization)


@pytest.mark.parametrize("authorization", [None, "Bearer", "Bearer ", "Bearer None"])
def test_without_tokens_nobody_is_let_in(authorization: str | None) -> None:
    assert not given(authorization)
