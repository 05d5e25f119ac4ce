"""Consumers over HTTP on a bad day, on real brokers: pull, streams and webhooks, with leases of broker and ledger.

    lanes.py     who consumes what: a broker, a version, a way and a lease
    messages.py  what the messages are like
    pulls.py     consumers that pull, or that read a stream, and settle
    receiver.py  an endpoint for webhooks, which fails as it is told to
    checker.py   what was published, what the consumers and the ledger say, judged
    harness.py   a gateway as a process of its own with many lanes at once, each with a history of its own
    accidents.py the faults: what is done to whom
    rows.py      the table of faults, in full and in the quick form
    __main__.py  the full form: ``python -m tests.faults.consumers ROW --on "push ledger" --full``

The quick form of each row is a test in this folder. The table with its figures is in
``docs/explanation/faults-of-consumers.md``.
"""
