"""Links, addresses, rules, routes and lookups as frozen values, and strict parsers for their text.

The package also has the base class of all errors, and the changes of a run.
"""
