"""A value of any kind, as an error's text shows it."""

from __future__ import annotations

MAX_LENGTH = 100


def shown(value: object) -> str:
    """Return the `repr` of a value, cut to 100 characters; of one whose repr fails, what it is."""
    try:
        text = repr(value)
    except Exception:  # it may be anybody's code; and a number of more than 4,300 digits has none
        return f"<{type(value).__name__}, whose repr failed>"
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
