"""Fuzzing: octets that no correct peer sends, by the million, and what must hold all the same.

``generators.py`` makes them (noise, mutated conversations, sentences of the grammar), ``states.py`` says where the
session stands when they come, ``oracle.py`` what must hold, ``targets.py`` who is fuzzed: sessions of each version in
both roles, the embedded broker with a neighbour, the SASL layer, a whole upstream. ``run.py`` and ``report.py`` are
the run and its table.

``make test`` plays 20,000 cases, ``make fuzz`` a million, ``make fuzz-guided`` lets coverage choose.
"""
