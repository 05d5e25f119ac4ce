"""Clients that openapi-generator makes of the OpenAPI document: they compile, and do the main job on a live gateway.

``tests/generated/install.sh`` installs the generator and what the languages need.
"""
