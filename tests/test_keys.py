"""Names and keys: the same call gives the same key, however it is written; what cannot name a lock is refused."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_singlecron.exceptions import InvalidName, InvalidTask
from django_singlecron.keys import LockKey, NameTemplate, bind_arguments, check_key_option, check_name, make_key
from django_singlecron.locks.postgres import PostgresLock
from testproject.billing.models import Tenant


def bill(tenant_id: Any, month: str = "2026-11", *, dry_run: bool = False, **more: Any) -> None: ...


SIGNATURE = inspect.signature(bill)


def name_of(template: str, *args: Any, **kwargs: Any) -> str:
    return NameTemplate(template, SIGNATURE, "bill").render(bind_arguments(SIGNATURE, args, kwargs))


@pytest.mark.parametrize("name", ["O'Brien */ --", "🐘 nightly", "100%", "{{braces}}", "{{}}", "x" * 200, " padded "])
def test_a_name_is_kept_exactly(name: str) -> None:
    assert name_of(name, 1) == name.replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "is empty"),
        ("  \t ", "is empty"),
        ("x" * 10_000, "10,000 characters long; at most 200"),
        ("x" * 201, "201 characters long"),
        ("nul\x00", "control character '\\x00'"),
        ("line\nbreak", "control character '\\n'"),
        ("half \ud83d", "control character '\\ud83d'"),
        ("open {", "malformed"),
        ("close }", "malformed"),
        ("{missing_brace", "malformed"),
    ],
)
def test_a_name_that_cannot_be_shown_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidName) as refused:
        NameTemplate(name, SIGNATURE, "bill")
    assert reason in str(refused.value)


def test_a_missing_argument_is_refused_when_decorated() -> None:
    def plain(tenant_id: int) -> None: ...

    with pytest.raises(InvalidName, match=r"\{missing\}, which is no argument of plain\(tenant_id"):
        NameTemplate("{missing}", inspect.signature(plain), "plain")


def test_an_argument_that_only_this_call_lacks_is_refused_by_the_call() -> None:
    assert name_of("bill:{region}", 1, region="eu") == "bill:eu"
    with pytest.raises(InvalidName, match=r"needs \{region\}, which this call does not give"):
        name_of("bill:{region}", 1)


@pytest.mark.parametrize(
    "field",
    [
        "tenant_id.",
        "tenant_id[]",
        "tenant_id[0]x",
        "tenant_id..name",
        "",
        "0",
        "tenant_id!r",
        "tenant_id:{month}",
        "tenant id",
    ],
)
def test_placeholders_other_than_one_named_argument_are_refused(field: str) -> None:
    with pytest.raises(InvalidName, match="Placeholders name one argument"):
        NameTemplate(f"bill:{{{field}}}", SIGNATURE, "bill")


@pytest.mark.parametrize("field", ["tenant_id.", "tenant_id[]", "tenant_id[0]x", "tenant_id..name"])
def test_placeholders_that_can_never_be_looked_up_are_refused(field: str) -> None:
    with pytest.raises(InvalidName, match="Placeholders name one argument"):
        NameTemplate(f"bill:{{{field}}}", SIGNATURE, "bill")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="42 is a int"):
        NameTemplate(42, SIGNATURE, "bill")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((7,), {}), ((), {"tenant_id": 7}), ((7, "2026-11"), {}), ((7,), {"month": "2026-11", "dry_run": False})],
)
def test_one_call_gives_one_name_however_it_is_written(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert name_of("bill:{tenant_id}:{month}:{dry_run}", *args, **kwargs) == "bill:7:2026-11:False"


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (dt.date(2026, 11, 29), "2026-11-29"),
        (dt.timedelta(hours=1), "1:00:00"),
        (None, "None"),
        (1.5, "1.5"),
        (Colour.RED, "red"),
        (Tenant(pk=7, name="Seven"), "7"),
    ],
)
def test_values_with_a_stable_text_name_a_lock(value: Any, text: str) -> None:
    assert name_of("bill:{tenant_id}", value) == f"bill:{text}"


def test_a_placeholder_may_reach_into_its_argument() -> None:
    assert name_of("bill:{tenant_id.name}", Tenant(pk=7, name="Seven")) == "bill:Seven"
    assert name_of("bill:{tenant_id[0]}:{tenant_id[1]:>03}", [7, 8]) == "bill:7:008"


@pytest.mark.parametrize("template", ["{tenant_id.missing}", "{tenant_id[9]}", "{tenant_id[key]}"])
def test_reaching_for_what_is_not_there_is_refused(template: str) -> None:
    with pytest.raises(InvalidName, match="which this call does not give"):
        name_of(template, [7])


@pytest.mark.parametrize("value", ["text", None])
def test_a_format_that_does_not_fit_the_value_is_refused(value: Any) -> None:
    with pytest.raises(InvalidName, match=r"cannot write .* in the format '05d'"):
        name_of("bill:{tenant_id:05d}", value)


@pytest.mark.parametrize(
    "value", [object(), [1], {1: 2}, b"bytes", Tenant(name="unsaved"), Tenant(pk=(1, None)), lambda: None]
)
def test_values_whose_text_may_differ_are_refused(value: Any) -> None:
    with pytest.raises(InvalidName):
        name_of("bill:{tenant_id}", value)


@pytest.mark.parametrize("value", ["", "x" * 200, "tab\t", "\udcff"])
def test_values_are_checked_as_part_of_the_name(value: str) -> None:
    with pytest.raises(InvalidName):
        name_of("{tenant_id}{month}", value, value)


def test_arguments_are_bound_as_the_call_would_bind_them() -> None:
    assert bind_arguments(SIGNATURE, (1,), {"extra": 2}) == {
        "tenant_id": 1,
        "month": "2026-11",
        "dry_run": False,
        "extra": 2,
    }
    with pytest.raises(TypeError, match="missing a required argument"):
        bind_arguments(SIGNATURE, (), {})


def test_a_keyword_does_not_take_the_place_of_a_positional_only_parameter_of_its_name() -> None:
    signature = inspect.signature(lambda tenant, /, **more: None)
    bound = bind_arguments(signature, (7,), {"other": 1, "tenant": 8})
    # In the order in which the history tells them.
    assert [*bound.items()] == [("tenant", 7), ("other", 1)]


@pytest.mark.parametrize("key", ["hashtextextended", "hashtext", 0, 4242, -(2**63), 2**63 - 1, (-(2**31), 2**31 - 1)])
def test_key_options(key: Any) -> None:
    assert check_key_option(key) is key


@pytest.mark.parametrize("key", ["md5", "", None, 1.0, True, 2**63, -(2**63) - 1, (1,), (1, 2, 3), (1, 2**31), [1, 2]])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(InvalidTask, match="is not a lock key"):
        check_key_option(key)


def test_which_key_space_a_key_lies_in() -> None:
    assert make_key("job", "hashtext") == LockKey("hashtext", ("job",))
    assert make_key("job", 42) == LockKey("integer", (42,))
    assert make_key("job", (1, 2)) == LockKey("pair", (1, 2))
    assert make_key("job", (1, 2)).is_pair
    assert not make_key("job", 42).is_pair


def test_check_name_returns_the_name() -> None:
    assert check_name("nightly") == "nightly"


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["daily-digest", "O'Brien */ --", "🐘", "%s %(x)s 100%", "back\\slash"])
def test_a_key_is_the_one_that_other_services_compute(name: str) -> None:
    sql = PostgresLock().key(make_key(name, "hashtextextended"))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql.text}, hashtextextended(%s, 0)", [*sql.parameters, name])
        ours, theirs = cursor.fetchone()
    assert ours == theirs
