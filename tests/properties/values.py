"""What a project may write where it should have written something else."""

from collections.abc import Callable
from datetime import timedelta, tzinfo
from typing import Any

from hypothesis import strategies as st

# More digits than Python writes in decimal.
HUGE = 10**5000
huge = st.builds(lambda sign: sign * HUGE, st.sampled_from([1, -1]))


class Hostile:
    """Raises whatever it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Timeless(tzinfo):
    """A time zone that knows no time."""


scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    huge,
    st.floats(),
    st.text(),
    st.binary(),
    st.timedeltas(),
    st.datetimes(),
    st.decimals(allow_nan=False),
    st.builds(Hostile),
    st.builds(Timeless),
    st.just(timedelta),
)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.sets(st.integers(), max_size=3),
    ),
    max_leaves=5,
)


def refusal(error: type[Exception], call: Callable[[], Any]) -> str | None:
    """Return the text of the error with which `call` refuses, None when it does not."""
    try:
        call()
    except error as refused:
        return str(refused)
    return None
