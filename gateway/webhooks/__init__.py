"""Webhooks: messages pushed to endpoints over HTTP.

Without I/O: how a request is signed (:mod:`~gateway.webhooks.attempts.signing`), what it looks like
(:mod:`~gateway.webhooks.attempts.forms`), what an answer means and when to try again
(:mod:`~gateway.webhooks.attempts.schedule`), and when to leave an endpoint alone (:mod:`~gateway.webhooks.breaker`).
Time and randomness are arguments there.

What endpoints there are is in :mod:`~gateway.webhooks.settings.endpoints`, one request in
:mod:`~gateway.webhooks.attempts.sender`, and what goes to whom and when in :mod:`~gateway.webhooks.supervisor`."""
