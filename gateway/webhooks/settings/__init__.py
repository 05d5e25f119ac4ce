"""Endpoints as they are set up: documents, checks, signing keys and secrets."""
