"""Compare the speed of hostrouting with the fastest alternatives:  ./run bench.

The two sides of a row take turns. Each run has a new network namespace, and its work is verified.
The ratios are therefore reliable and can be compared between machines, while the milliseconds
depend on the machine.

::

    __main__   enters namespaces in which scripts can do no harm, and measures there
    rows       the comparisons
    growth     charts of how the cost grows
    ways       ways to install routes and to check CIDRs, both ours and others
    figures    the figures, as objects and as JSON
    page       the table and docs/contributing/performance.md
"""
