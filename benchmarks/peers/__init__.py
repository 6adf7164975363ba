"""A comparison with other programs, each on a booted machine: ``./run bench peers``."""
