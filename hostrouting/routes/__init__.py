"""The way of a static route: resolve -> plan -> install -> verify.

``formats`` says the same routes in the words of other tools.
Other rooms import the modules named here, and no others.
"""

__all__ = ["formats", "install", "plan", "resolve", "verify"]
