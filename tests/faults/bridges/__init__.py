"""Bridges on a bad day, on real brokers: whatever breaks, nothing is lost, and what is there twice says so.

    load.py      what the messages are like
    checker.py   what was published, what the target, the dead-letter queue and the ledger hold, judged
    harness.py   a gateway as a process of its own with one bridge, its two brokers behind proxies
    accidents.py, obstacles.py, poisons.py   the faults: what is done to whom
    rows.py      the table of faults, in full and in the quick form
    __main__.py  the full form: ``python -m tests.faults.bridges ROW --on "0-8 to 0-10" --full``

The quick form of each row is a test in this folder. The table with its figures is in
``docs/explanation/faults-of-bridges.md``.
"""
