"""How fast, beside its peers in one run: ``make bench``.

A *section* (:mod:`tests.benchmarks.sections`) lets several clients do the same piece of work, turn and turn about,
against the same server, for a few rounds; each client that talks to a server is a process of its own
(:mod:`tests.benchmarks.programs`, :mod:`tests.benchmarks.golang`), so that its CPU and its memory are its own. A row
of the table (:mod:`tests.benchmarks.rows`) shows the median of the rounds. Ratios are taken round by round before the
median is: what disturbs the machine disturbs both sides of a round. Absolute numbers belong to the machine they were
measured on; only ratios are worth quoting.

What we want is written down as :data:`tests.benchmarks.aims.AIMS`, and each run says of each aim whether it was met.
Nothing here fails because something is slow: the exit status says whether everything could be measured.

:mod:`tests.benchmarks.compare` runs our side alone on two commits: ``make bench-compare BASE=main~1``.
"""
