"""Links, addresses, rules, routes and lookups as frozen values, and strict parsers for their text.

The root of the error tree, and the changes of a run, are here too.
"""
