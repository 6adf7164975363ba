"""Immutable types for links, addresses, rules, routes and lookups, and their strict parsers.

The package also defines the base class for all errors, and the types that describe a run's changes.
"""
