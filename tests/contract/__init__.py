"""The API beside its own OpenAPI document: ``python -m tests.contract``, and in little within the tests."""
