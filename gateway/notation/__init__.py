"""How messages and their values are written outside of AMQP: one notation for what the API answers and for what
webhooks carry.

:mod:`~gateway.notation.values` writes AMQP values as JSON and reads them back, :mod:`~gateway.notation.messages` writes
whole messages, :mod:`~gateway.notation.fields` names the HTTP headers of a raw body, and
:mod:`~gateway.notation.cloudevents` what CloudEvents need of both. No I/O, and nothing of HTTP but names.
"""
