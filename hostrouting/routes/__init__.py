"""Static routes, in the steps resolve -> plan -> install -> verify.

``formats`` writes the same routes for other tools.
"""
