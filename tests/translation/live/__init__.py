"""Messages from version to version and back, over real brokers.

``messages.py`` makes them: every property and every header type that the source has, with edge values and random
ones. ``run.py`` publishes them at one end, lets bridges of the gateway carry them to the other end and back again,
takes them there and says what became of each. ``compare.py`` is the judge: field by field, and by
:func:`gateway.fidelity.digest`.

``python -m tests.translation.live --messages 10000 --seed 1`` does so for every pair and prints the table;
``python -m tests.translation.live.conversion`` shows what Broker-J makes of a message by itself.
"""
