"""Whole worlds in one thread: the gateway, far brokers, callers and a network, under virtual time and one seed."""
