"""The front door: AMQP clients of any version, served from an upstream broker of any version.

A client speaks to a server session of its own version. What it asks is passed, mapped, emulated or refused by one
table (:mod:`gateway.front.treatment`), rewritten by the rules for the upstream's product (:mod:`gateway.front.rules`),
and sent on one channel of a connection to the upstream that clients with the same login share.

``target``, ``treatment``, ``rules``, ``rights``, ``refusals``, ``topology``, ``channel`` and ``client`` do no I/O;
``links``, ``front`` and ``fronts`` do.
"""
