"""Static routes: resolve, plan, install and verify them.

``formats`` renders the same routes for other tools.
"""
