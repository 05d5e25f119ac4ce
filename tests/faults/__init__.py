"""Faults, on real brokers: nothing that was promised is lost, whatever breaks.

    checker.py   what a run promised and what came of it, judged
    proxy.py     a TCP proxy whose toxics are put in and taken out while it runs
    http.py      a small HTTP client that knows whether its request was written
    load.py      producers and consumers that write down a History
    source.py    messages published straight to a broker, each with an id of its own
    harness.py   a gateway as a process of its own, its brokers behind proxies, one run from load to verdict
    nursery.py   gateways that start in a moment
    rows.py      the table of faults: what is done to whom
    bridges/     the same of bridges
    consumers/   and of consumers over HTTP
    __main__.py  the full form: ``make faults``

The quick form of each row is a test in this folder. ``docs/explanation/reliability.md`` has the table with its figures.
"""
