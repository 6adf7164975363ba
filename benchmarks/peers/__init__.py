"""A comparison with the programs that a user might choose instead, each on a booted machine: ``./run bench peers``."""
