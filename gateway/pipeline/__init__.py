"""Jobs over what the gateway remembers, on Spark: archive, rollups, reconciliation, replay, transfer.

The service never imports this package, and importing it does not import Spark: a module that needs it says so, and a
command that only shows help or checks a setting does not wait for it.
"""
