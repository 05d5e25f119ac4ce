"""Attacks on a live gateway over loopback: nobody can hurt anybody.

::

    rows.py          the table of attacks: which one, on which gateway, within which limits
    lab.py           gateways as processes of their own, with their keys and receivers
    neighbor.py      a second client in a process of its own, which measures how long it waits
    judge.py         what a row has measured, and what of it is too much
    client.py        HTTP, octet by octet
    fake.py          a server that lets everything pass, to show that each row can fail
    credentials.py   keys, scopes and ack ids
    tokens.py        bearer tokens
    paths.py         names and texts in paths, queries and bodies
    http_framing.py  heads and bodies that HTTP forbids
    json_bodies.py   bodies that are hardly JSON
    http_load.py     pipelining, slow callers, large bodies, unread answers, large pulls
    browsers.py      requests of web pages
    outbound.py      URLs and answers of endpoints, and names that no name server answers
    amqp_frames.py   frames, tables and connections of the embedded broker
    amqp_load.py     what costs the embedded broker much time
    poison.py        messages that some consumers cannot take
    logins.py        logins of the embedded broker
    budgets.py       a client that takes all that it can
    proxies.py       callers behind a proxy, and strangers who forge its headers
    secrets.py       planted secrets, and terminals
    planted.py       a gateway without its defenses, to show that the judges notice
    __main__.py      the full form: ``make attack``

The quick form of each row is a test in this folder. ``docs/explanation/attacks.md`` says how to read the table.
"""
