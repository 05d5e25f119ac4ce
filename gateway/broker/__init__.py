"""The embedded broker: queues and exchanges in memory, for development and tests.

It answers as RabbitMQ does, over all versions on one port, and forgets everything when it stops
(``durable_storage`` is false in its server properties). All but the last two are sans-I/O:

==================  =========================================================================
``broker.py``       connections; which rule of which version applies; requests in, outcomes out
``channels.py``     one channel: confirm mode, transaction, deliveries that are out
``vhost.py``        names of exchanges and queues, declare and bind, routing, dead letters
``exchanges.py``    how a routing key or headers choose destinations
``queues.py``       messages in order, limits, expiry, fair dispatch
``consumers.py``    who may have how many messages
``arguments.py``    the tables of arguments that are known
``dead_letters.py`` the ``x-death`` header
``logins.py``       how long failed logins make the next ones wait
``alarms.py``       what has to happen when
``refusals.py``     reply codes and texts
``served.py``       a port and its clients' connections: crowds, back-pressure, deadlines (asyncio)
``server.py``       the broker on its ports (asyncio)
==================  =========================================================================
"""
