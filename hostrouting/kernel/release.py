"""Differences between Linux releases in IPv4 lookups.

The facts were measured; see tests/kernel/test_releases.py.
"""

from __future__ import annotations

import re

_RELEASE = re.compile(r"\b([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?")


def numbers_of(kernel: str | None) -> tuple[int, ...] | None:
    """Return the numbers in the output of ``uname -sr``, like ``(6, 1, 176)``, or None."""
    found = _RELEASE.search(kernel or "")
    return tuple(int(number or 0) for number in found.groups()) if found else None


def has_network_broadcasts(kernel: str | None) -> bool:
    """Return whether a subnet's first address is a broadcast address, as before Linux 5.14."""
    numbers = numbers_of(kernel)
    return numbers is not None and numbers < (5, 14)


def passes_discards(kernel: str | None) -> bool | None:
    """Return whether a lookup goes on to table default after a discarding entry in table main.

    The result applies to hosts without custom rules.

    Up to Linux 6.1, the lookup goes on (fib_lookup). In 7.2 and later, and in updates of 6.12 from
    6.12.113 on and of 6.18 from 6.18.44 on, the lookup ends. Other releases weren't measured.

    Returns:
        True or False; None for a release that wasn't measured.
    """
    numbers = numbers_of(kernel)
    if numbers is None:
        return None
    if numbers < (6, 2):
        return True
    is_fixed_6_12 = (6, 12, 113) <= numbers < (6, 13)
    is_fixed_6_18 = (6, 18, 44) <= numbers < (6, 19)
    is_fixed = is_fixed_6_12 or is_fixed_6_18 or numbers >= (7, 2)
    return False if is_fixed else None


def separates_on_deletion(kernel: str | None) -> bool | None:
    """Return whether deleting a rule separates tables local and main, as adding one does.

    See fib_unmerge.

    Returns:
        True or False; None for a release that wasn't measured.
    """
    numbers = numbers_of(kernel)
    if numbers is None or (6, 19) <= numbers < (7, 2):
        return None
    return numbers < (6, 19)
