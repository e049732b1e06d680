"""A job's name and arguments, and the advisory lock's key that follows from them. Pure: no database."""

from __future__ import annotations

import enum
import inspect
import re
import string
import unicodedata
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from django.db.models import Model

from .exceptions import InvalidName, InvalidTask
from .shown import shown

MAX_NAME_LENGTH = 200

HashAlgorithm = Literal["hashtextextended", "hashtext"]
KeyOption = HashAlgorithm | int | tuple[int, int]

_HASHES = ("hashtextextended", "hashtext")
_NAMEABLE = (str, int, float, bool, Decimal, UUID, date, time, timedelta, type(None))
_CONTROL_CATEGORIES = {"Cc", "Cs"}


class LockKey(NamedTuple):
    """The key of an advisory lock: a name that the server hashes, an integer, or a pair of integers."""

    algorithm: Literal["hashtextextended", "hashtext", "integer", "pair"]
    arguments: tuple[str | int, ...]

    @property
    def is_pair(self) -> bool:
        """Whether it lies in the key space of two 32-bit integers, which is apart from that of one of 64."""
        return self.algorithm == "pair"


def check_key_option(key: object) -> KeyOption:
    """Return `key` when it is a key option.

    Raises `InvalidTask` when it is not `"hashtextextended"`, `"hashtext"`, an integer of 64 bits with sign,
    or a pair of integers of 32 bits with sign.
    """
    is_hash = isinstance(key, str) and key in _HASHES
    is_pair = isinstance(key, tuple) and len(key) == 2 and all(_is_int(part, 32) for part in key)
    if is_hash or is_pair or _is_int(key, 64):
        return cast("KeyOption", key)
    raise InvalidTask(
        f'key={shown(key)} is not a lock key. Use "hashtextextended" (the default), "hashtext", an integer of 64 bits, '
        "or a pair of integers of 32 bits, such as key=(7, 42)."
    )


def _is_int(value: object, bits: int) -> bool:
    return type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def make_key(name: str, option: KeyOption) -> LockKey:
    """Return the lock key of the job `name` under the key option of its task."""
    if isinstance(option, str):
        return LockKey(option, (name,))
    if isinstance(option, int):
        return LockKey("integer", (option,))
    return LockKey("pair", option)


def check_name(name: str) -> str:
    """Return `name` when it can name a job.

    Raises `InvalidName` when it is empty or blank, is longer than 200 characters, or holds control
    characters or half a surrogate pair, none of which a list could show.
    """
    if not name.strip():
        raise InvalidName("A job's name is empty. Give it one that the history can show.")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(
            f"The job name {name[:40]!r}… is {len(name):,} characters long; at most {MAX_NAME_LENGTH} are kept."
        )
    for character in name:
        if unicodedata.category(character) in _CONTROL_CATEGORIES:
            raise InvalidName(f"The job name {name!r} holds the control character {character!r}.")
    return name


class NameTemplate:
    """A job's name, which may hold arguments: `"bill:{tenant_id}"`.

    Arguments: `template` in the manner of `str.format`, with named placeholders only; `signature` of the
    function whose arguments fill them; `owner`, how to call that function in an error.

    Raises `InvalidName` when the template is malformed, or names what is no argument of the function.
    """

    def __init__(self, template: object, signature: inspect.Signature, owner: str) -> None:
        if not isinstance(template, str):
            raise InvalidName(f"A job's name is text; {shown(template)} is a {type(template).__name__}.")
        self.template = template
        self.owner = owner
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise InvalidName(
                f"The job name {template!r} is malformed: {error}. Write {{{{ and }}}} for literal braces."
            ) from error
        fields = [(field, spec, conversion) for _, field, spec, conversion in parts if field is not None]
        self.has_placeholders = bool(fields)
        for field, spec, conversion in fields:
            self._check_placeholder(field, spec, conversion, signature)
        literal = "".join(text for text, *_ in parts)
        if not self.has_placeholders or literal.strip():
            check_name(literal)
        self.text = template if self.has_placeholders else literal
        """The name as it is shown where no arguments are known."""
        self._pattern = re.compile(
            "".join(re.escape(text) + (".*" if field else "") for text, field, *_ in parts), re.S
        )

    def matches(self, name: str) -> bool:
        """Whether some call could give this name."""
        return self._pattern.fullmatch(name) is not None

    def _check_placeholder(
        self, field: str, spec: str | None, conversion: str | None, signature: inspect.Signature
    ) -> None:
        argument = _argument_of(field)
        if not argument.isidentifier() or not _is_well_formed(field) or conversion or "{" in (spec or ""):
            raise InvalidName(
                f"The job name {self.template!r} holds the placeholder {{{field}}}. Placeholders name one argument, "
                "as in {tenant_id} or {tenant.slug}, without conversions."
            )
        if argument in signature.parameters:
            return
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if not takes_any:
            raise InvalidName(
                f"The job name {self.template!r} holds {{{field}}}, which is no argument of {self.owner}{signature}."
            )

    def render(self, arguments: dict[str, Any]) -> str:
        """Return the name for one call.

        Raises `InvalidName` when an argument is missing, or has no stable text: a list, an unsaved model, any object
        whose text is its address in memory.
        """
        if not self.has_placeholders:
            return self.text
        return check_name(_NameFormatter(self).vformat(self.template, (), arguments))


def _argument_of(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


class _Anything:
    """Has every attribute and every item."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self


def _is_well_formed(field: str) -> bool:
    """Whether what follows the argument in a placeholder can be looked up, as `.slug` and `[0]` can."""
    try:
        string.Formatter().get_field(field, (), {_argument_of(field): _Anything()})
    except ValueError:
        return False
    return True


class _NameFormatter(string.Formatter):
    def __init__(self, template: NameTemplate) -> None:
        self._template = template

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            value, first = super().get_field(field_name, args, kwargs)
        except (LookupError, AttributeError, TypeError) as error:
            raise InvalidName(
                f"The job name {self._template.template!r} of {self._template.owner} needs {{{field_name}}}, "
                "which this call does not give."
            ) from error
        return self._stable(field_name, value), first

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            text: str = super().format_field(value, format_spec)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidName(
                f"The job name {self._template.template!r} of {self._template.owner} cannot write this "
                f"{type(value).__name__} in the format {format_spec!r}: {error}."
            ) from error
        return text

    def _stable(self, field: str, value: Any) -> Any:
        if isinstance(value, Model):
            key = value.pk
            # A composite key is a tuple.
            if key is None or (isinstance(key, tuple) and None in key):
                raise InvalidName(f"{{{field}}} is an unsaved {type(value).__name__}, which has no key to name a lock.")
            return key
        if isinstance(value, enum.Enum):
            return self._stable(field, value.value)
        if isinstance(value, _NAMEABLE):
            return value
        raise InvalidName(
            f"{{{field}}} is a {type(value).__name__}, whose text may differ from call to call. Name it by a number, a "
            "text, a date or a saved model."
        )


def bind_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the call's arguments by name, defaults filled in and `**kwargs` merged in, which displace no parameter.

    Raises `TypeError`, as the call itself would, when they do not fit the signature.
    """
    if not (args or kwargs or signature.parameters):
        return {}
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            # They come last. One may have the name of a positional-only parameter, which is the one that is meant.
            arguments |= {name: each for name, each in value.items() if name not in arguments}
        else:
            arguments[name] = value
    return arguments
