"""Who may call the gateway, and what they may do: scopes, keys, tokens, rates, and the record of it all.

Nothing here knows HTTP: :mod:`gateway.api.http.auth` finds the credential in a request and asks.
"""
