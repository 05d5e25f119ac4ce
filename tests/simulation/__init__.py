"""Whole worlds in one thread: the gateway, far brokers, callers and a network, under virtual time and one seed."""

from tests.simulation import undoing

undoing.install()  # before anything imports the gateway
