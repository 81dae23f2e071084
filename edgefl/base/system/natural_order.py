"""Natural order of names: img9 before img10."""

import re

DIGITS = re.compile(r"(\d+)", re.ASCII)


def make_natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares the numbers in names by value.

    Names with the same numbers, such as 1 and 01, have the order of their texts.

    Args:
        name: name of a file or column.
    """
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in DIGITS.split(name) if part]
    return (*parts, (2, 0, name))
