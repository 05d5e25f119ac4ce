"""Traces: contexts, spans, their octets, their way to a collector; and one trace over everything."""
