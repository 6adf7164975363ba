"""What a kernel holds, as frozen values, and how text from outside becomes such values.

Links and addresses, rules, routes and look-ups; addresses and prefixes, read strictly; the root of the error tree;
words from outside made fit for a message; how files are opened; what a run has changed.
Other rooms import the modules named here, and no others.
"""

__all__ = ["changes", "errors", "links", "parsing", "prefixes", "routes", "rules", "text", "uncollected"]
