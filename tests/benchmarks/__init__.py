"""How fast, beside other clients in the same run: ``make bench``.

Each row is one client doing one piece of work. Both sides of a comparison run in this process one after the other,
against the same broker, with the same window, the same messages and the same number of octets per acknowledgement;
the best of a few rounds counts. CPU is that of this process alone, not the broker's. Absolute numbers belong to the
machine they were measured on: only the ratio is worth quoting.
"""
