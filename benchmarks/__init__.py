"""How fast hostrouting is, compared with the fastest alternative:  ./run bench.

Both sides of each row run by turns, each time in a new network namespace, and their work is verified each time. So
ratios are reliable, and comparable between machines; the milliseconds are this machine's.

::

    __main__   enters namespaces where scripts do no harm, and measures there
    rows       the comparisons; those of snapshots, fleet and hosts
    growth     pictures of how the cost grows
    ways       contenders that install and check: hostrouting's and others
    figures    the figures, as values and as JSON
    page       the table, and docs/explanation/performance.md
"""
