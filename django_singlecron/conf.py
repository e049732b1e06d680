"""The setting `SINGLECRON`, typed, read when first needed, read again when a test overrides it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .shown import shown

SETTING = "SINGLECRON"

# The types of which an error shows the value. Of others it may hold what is not for a log: a dict of DATABASES does.
_SHOWN = (bool, int, float, str, type(None))

_PRINTABLE = r"[!-~]+"


class Settings(NamedTuple):
    """What `SINGLECRON` holds, under the same names in lower case."""

    locking: bool = True
    """False runs every job without a lock: for development on a database that has none."""
    database: str = "default"
    """The alias of the database that jobs without `using=` lock, record and work in."""
    record_skips: bool = True
    """Whether jobs without `record_skips=` leave a row for each attempt that was skipped."""
    output_limit: int = 65_536
    """How many characters of a run's output the history keeps: the last ones."""
    tokens: Sequence[str] = ()
    """What a request may send as `Authorization: Bearer …`; none lets only people in who are logged in."""

    def __repr__(self) -> str:
        # Without the tokens, which are secrets.
        told = [f"{name}={value!r}" for name, value in self._asdict().items() if name != "tokens"]
        return f"Settings({', '.join(told)})"


class Problem(NamedTuple):
    """One thing that is wrong with the setting."""

    message: str
    hint: str
    unknown_key: bool = False


def find_problems(value: object) -> Iterator[Problem]:
    """Yield what is wrong with `value`, read as the setting `SINGLECRON`."""
    if not isinstance(value, dict):
        yield Problem(
            f"{SETTING} is a {type(value).__name__}, not a dict.", f'Write {SETTING} = {{"DATABASE": "default"}}.'
        )
        return
    types: dict[str, type] = {name.upper(): type(default) for name, default in Settings._field_defaults.items()}
    for key, given in value.items():
        if key not in types:
            yield Problem(f"{SETTING} has an unknown key: {shown(key)}.", f"It may hold: {', '.join(types)}.", True)
        elif types[key] is tuple:
            if not _are_tokens(given):
                # Without its value, which a secret may be a part of.
                yield Problem(
                    f"{SETTING}[{key!r}] is no list of tokens.", "Each is text of printable ASCII without spaces."
                )
        elif type(given) is not types[key]:
            yield Problem(
                f"{SETTING}[{key!r}] is {_described(given)}.",
                f"It must be of type {types[key].__name__}.",
            )
        elif isinstance(given, int) and given < 0:
            yield Problem(f"{SETTING}[{key!r}] is {shown(given)}.", "It is a number of characters: 0 or more.")


def _described(value: object) -> str:
    kind = f"a {type(value).__name__}"
    return f"{shown(value)}, {kind}" if isinstance(value, _SHOWN) else kind


def _are_tokens(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(token, str) and re.fullmatch(_PRINTABLE, token) for token in value
    )


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the settings of the project.

    Raises `ImproperlyConfigured` when the dict has an unknown key or a value of the wrong type.
    """
    value: dict[str, Any] = getattr(django_settings, SETTING, {})
    for problem in find_problems(value):
        raise ImproperlyConfigured(f"{problem.message} {problem.hint}")
    return Settings(**{key.lower(): given for key, given in value.items()})


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == SETTING:
        get_settings.cache_clear()


setting_changed.connect(_forget)
