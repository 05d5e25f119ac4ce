"""Webhooks: messages pushed to endpoints over HTTP.

Without I/O: how a request is signed (:mod:`~gateway.webhooks.signing`), what it looks like
(:mod:`~gateway.webhooks.forms`), what an answer means and when to try again (:mod:`~gateway.webhooks.schedule`), and
when to leave an endpoint alone (:mod:`~gateway.webhooks.breaker`). Time and randomness are arguments there.

What endpoints there are is in :mod:`~gateway.webhooks.endpoints`, one request in :mod:`~gateway.webhooks.sender`, and
what goes to whom and when in :mod:`~gateway.webhooks.supervisor`."""
