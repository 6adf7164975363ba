"""How fast hostrouting is, beside the fastest other way to do the same:  ./run bench.

Both sides of each row run in turns, each time in a fresh network namespace, and what they did is verified each time. So
ratios can be relied upon, and compared between machines; the milliseconds are this machine's.

::

    __main__   goes where scripts can run without harm, and measures there
    rows       what is compared with what; of snapshots, fleet and hosts
    growth     pictures of how the cost grows
    ways       hostrouting's ways to install and to check, and others
    figures    what was measured, as values and as JSON
    page       as a table, and as docs/explanation/performance.md
"""
