"""How fast hostrouting is, beside the fastest other way to do the same:  ./run bench.

Both sides of each row run alternately, in one go, each time in a fresh network namespace, and what they did is
verified each time. So ratios can be relied upon, and compared between machines; the milliseconds are this machine's.

::

    __main__   asks for a place where scripts can run without harm, and goes there
    inside     what is measured there, in which order
    rows       boot.py, backend.py, checking.py, growth.py, starting.py: section by section what is compared with what
    growth     how the cost grows with the number of routes, of CIDRs, with the FIB, and with a host
    figures    what was measured, as values and as JSON
    page       as a table for a terminal, and as docs/explanation/performance.md
    charts     as pictures
"""
