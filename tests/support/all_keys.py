"""See that a test has a value for each key of the config."""

from __future__ import annotations

from collections.abc import Collection

from hostrouting.config.validation import key_fields


def see_all_keys(cls: type, names: Collection[str]) -> None:
    """Fail if a field of a section, or of an item in one, isn't among the names."""
    lacking = {field.name for field in key_fields(cls)} - {*names}
    assert not lacking, f"draw {cls.__name__}'s {lacking} here, too"
