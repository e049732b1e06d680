"""Names with arguments and keys: exact or refused; one call has one key, and the server agrees on which."""

from __future__ import annotations

import inspect
import unicodedata
from typing import Any

import pytest
from django.db import connection
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_singlecron import SingletonTask
from django_singlecron.exceptions import InvalidName, InvalidTask
from django_singlecron.keys import MAX_NAME_LENGTH, NameTemplate, bind_arguments, check_key_option, make_key
from django_singlecron.locks.postgres import PostgresLock
from django_singlecron.models import JobRun
from django_singlecron.options import check_options
from django_singlecron.registry import _tasks
from tests.properties.values import HUGE, anything, huge, refusal

# A name's characters that PostgreSQL takes and a list shows, and any other.
shown_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=MAX_NAME_LENGTH)
any_text = st.text(st.characters(), max_size=300)

values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    huge,
    st.floats(),
    st.text(max_size=10),
    st.decimals(),
    st.uuids(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
)

# Placeholders of every kind: well and badly formed, of arguments that are there and that are not.
accesses = st.lists(
    st.sampled_from(
        [".real", ".a", ".", "..", "[0]", "[-1]", "[a]", "[]", "[", "]", "[0]x", "[" + "9" * 30 + "]", "\n"]
    ),
    max_size=2,
).map("".join)
conversions = st.sampled_from(["", "", "", "", "!r", "!s", "!a", "!", "!x"])
formats = ["05d", ">5", "n", ",", "z", ".3", "=+5", "c", "_", "99.99%", "%Y-%m", "%", "\x00", "\ud800", "{tenant}", "}"]
specs = st.sampled_from(["", "", ":", *(f":{spec}" for spec in formats), ":" + "9" * 30])
arguments = st.sampled_from(["tenant", "month", "args", "more", "other", ""])
placeholders = st.builds("{{{}{}{}{}}}".format, arguments, accesses, conversions, specs)
pieces = st.one_of(placeholders, st.sampled_from(["{", "}", "{{", "}}", ":", "bill", " ", "\x00", "%s", "'"]))
templates = st.lists(pieces, max_size=5).map("".join)


def bill(tenant: Any, month: Any = None, *args: Any, dry_run: bool = False, **more: Any) -> None: ...


SIGNATURE = inspect.signature(bill)


def plain(tenant: Any, month: Any = None, *, kind: Any = None) -> None: ...


def name_of(template: str, *args: Any, **kwargs: Any) -> str:
    return NameTemplate(template, SIGNATURE, "bill").render(bind_arguments(SIGNATURE, args, kwargs))


@given(template=templates, tenant=values, month=values)
@example(template="{tenant.}", tenant=1, month=1)
@example(template="{tenant[]}", tenant=[1], month=1)
@example(template="{tenant[0]x}", tenant=[1], month=1)
def test_a_name_is_refused_or_can_be_shown_and_is_known_as_one_of_its_template(
    template: str, tenant: Any, month: Any
) -> None:
    try:
        checked = NameTemplate(template, SIGNATURE, "bill")
        name = checked.render(bind_arguments(SIGNATURE, (tenant,), {"month": month}))
    except InvalidName:
        return
    assert 0 < len(name.strip()) <= len(name) <= MAX_NAME_LENGTH
    assert not {unicodedata.category(character) for character in name} & {"Cc", "Cs"}
    assert checked.matches(name)


@given(
    field=st.builds("{}{}".format, st.sampled_from(["tenant", "month"]), accesses),
    value=st.one_of(values, st.lists(values, max_size=2)),
)
def test_what_can_never_be_looked_up_is_refused_when_decorated(field: str, value: Any) -> None:
    template = f"bill:{{{field}}}"
    if refusal(InvalidName, lambda: NameTemplate(template, SIGNATURE, "bill")):
        with pytest.raises((ValueError, LookupError, AttributeError, TypeError)):
            template.format(tenant=value, month=value)


def test_a_number_that_cannot_be_written_is_refused() -> None:
    for template in ("{tenant}", "{tenant:05d}"):
        with pytest.raises(InvalidName, match="cannot write this int in the format"):
            name_of(template, HUGE)


@given(text=any_text)
def test_a_text_is_the_name_itself_or_refused(text: str) -> None:
    template = text.replace("{", "{{").replace("}", "}}")
    can_be_shown = not {unicodedata.category(character) for character in text} & {"Cc", "Cs"}
    if text.strip() and len(text) <= MAX_NAME_LENGTH and can_be_shown:
        assert name_of(template, 1) == NameTemplate(template, SIGNATURE, "bill").text == text
    else:
        with pytest.raises(InvalidName):
            NameTemplate(template, SIGNATURE, "bill")


@given(first=shown_text, second=shown_text)
def test_different_texts_give_different_names_and_keys(first: str, second: str) -> None:
    assume(first != second and first.strip() and second.strip())
    assert name_of("{tenant}", first) == first
    assert make_key(name_of("{tenant}", first), "hashtext") != make_key(name_of("{tenant}", second), "hashtext")


@given(st.tuples(st.integers(), st.integers()), st.tuples(st.integers(), st.integers()))
def test_different_numbers_give_different_names(first: tuple[int, int], second: tuple[int, int]) -> None:
    assert (name_of("{tenant}:{month}", *first) == name_of("{tenant}:{month}", *second)) == (first == second)


@given(tenant=values, month=st.one_of(st.none(), values), kind=st.one_of(st.none(), values))
def test_a_call_has_one_name_however_it_is_written(tenant: Any, month: Any, kind: Any) -> None:
    task: SingletonTask[Any, Any] = SingletonTask(plain, check_options(name="bill:{tenant}:{month}:{kind}"))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((tenant, month), {"kind": kind}),
        ((tenant,), {"month": month, "kind": kind}),
        ((), {"kind": kind, "month": month, "tenant": tenant}),
    ]
    # The defaults may be left out.
    if month is None:
        calls.append(((tenant,), {"kind": kind}))
    if kind is None:
        calls.append(((tenant, month), {}))
    names = {refusal(InvalidName, lambda c=call: task.name_of_call(*c)) or task.name_of_call(*call) for call in calls}
    assert len(names) == 1
    assert task.__qualname__ not in _tasks


# Keys


key_options: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["hashtextextended", "hashtext"]),
    st.integers(-(2**63), 2**63 - 1),
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
)

# What a session holds, as pg_locks shows it.
HELD = """
SELECT classid::bigint, objid::bigint, objsubid FROM pg_locks
WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""
EXPECTED = {
    "hashtextextended": "SELECT hashtextextended(%s, 0)",
    "hashtext": "SELECT hashtext(%s)::bigint",
}


@given(option=st.one_of(anything, key_options))
def test_a_key_option_is_taken_as_it_is_or_refused(option: Any) -> None:
    refused = refusal(InvalidTask, lambda: check_key_option(option))
    assert refused is None or "is not a lock key" in refused
    if refused is None:
        assert check_key_option(option) is option


@given(option=key_options)
def test_every_key_in_range_is_taken(option: Any) -> None:
    assert check_key_option(option) is option


@given(part=st.one_of(st.integers(max_value=-(2**31) - 1), st.integers(min_value=2**31)), first=st.booleans())
def test_no_pair_out_of_range_is_taken(part: int, first: bool) -> None:
    with pytest.raises(InvalidTask, match="is not a lock key"):
        check_key_option((part, 1) if first else (1, part))


@pytest.mark.django_db
@given(name=shown_text.filter(str.strip), option=key_options)
def test_a_key_is_what_the_server_locks_and_what_other_services_compute(name: str, option: Any) -> None:
    lock, key = PostgresLock(), make_key(name, option)
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT example")
        cursor.execute(f"SELECT {lock.key(key).text}", lock.key(key).parameters)
        [number] = cursor.fetchone()
        if isinstance(option, str):
            cursor.execute(EXPECTED[option], [name])
            assert cursor.fetchone() == (number,)
        cursor.execute(lock.try_exclusive(key).text, lock.try_exclusive(key).parameters)
        cursor.execute(HELD)
        assert cursor.fetchall() == [(number >> 32 & 0xFFFF_FFFF, number & 0xFFFF_FFFF, 2 if key.is_pair else 1)]
        cursor.execute("ROLLBACK TO example")
    run = JobRun(key=number, key_is_pair=key.is_pair)
    assert run.key_pair == (option if key.is_pair else None)
    assert number == option or not isinstance(option, int)
