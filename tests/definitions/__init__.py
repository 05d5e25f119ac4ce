"""The gateway's classes beside the definitions of the protocols, one by one.

The definitions themselves are no part of the project. Where they are found (:func:`definitions.folder`), they are read;
where they are not, the facts in ``facts/``, which a test compares with every definition that it finds.
``GATEWAY_SPEC_DIR`` says where they are; without it they are looked for where Debian's package ``amqp-specs`` has them.
``python -m tests.definitions`` writes the facts anew.
"""
