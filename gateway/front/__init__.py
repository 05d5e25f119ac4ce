"""The front door: AMQP clients of any version, served from an upstream broker of any version.

A client speaks to a server session of its own version. One table says whether an operation is passed, mapped, emulated
or refused (:mod:`gateway.front.channels.treatment`). Rules for the upstream's product rewrite it
(:mod:`gateway.front.channels.rules`). Each channel of a client has one channel at the upstream, on a connection that
clients with the same login share.

``links``, ``server`` and ``fronts`` do I/O; nothing else here does.
"""
