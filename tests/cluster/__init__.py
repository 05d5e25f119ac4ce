"""Several gateways on one PostgreSQL: who owns what, and what becomes of it when an owner is killed or paused.

``harness.py`` starts the processes, with bridges between queues of one broker; ``audit.py`` has the database itself
write down who owned which work when, by its own clock, and finds what must not be; ``rows.py`` says what happens to
them; ``python -m tests.cluster`` runs rows by hand, in their full form with ``--full``.
"""
