"""All experiments with faults, F01 to F34, as one command: ``make chaos``, or ``python -m tests.chaos``.

    table.py      the experiments: what is done, what must come of it, and by which parts that is shown
    parts.py      the kinds of parts: a row of tests/faults and its like, tests by their names, a function of ours
    figures.py    what a part found, as a line of the table and as JSON
    report.py     ``RELIABILITY.md``, written from the JSON of runs
    runs/         that JSON, one file for each experiment and form
    __main__.py   the command line

What an experiment needs and no other suite has is in modules of its own here: clocks, channels, heartbeats, confirms,
unroutable, same_key, nth_statement, slow_target, link_limit, upgrade, soak. offsets and hostile_octets run the work of
other suites for its figures.

Each experiment has a quick form and a full one. The quick form is a part of ``make test``: tests of other suites,
which the table names and a test looks for, or tests in this folder; nothing runs twice. The command runs the same by
itself, and prints figures.
"""
