"""Users of a front: who may log in at it, how that is checked, and what each may do."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Final

from gateway.access.scopes import Principal, principal_of
from gateway.amqp.sasl import SALT_OCTETS, SaslError, no_scram_keys, scram_keys
from gateway.config import FrontUser
from gateway.errors import ConfigurationError
from gateway.runtime.ids import random_bytes
from gateway.session import ScramKeys

SCRAM_SECRET: Final = 32
"""Octets of the secret from which users that do not exist have their keys."""


class FrontUsers:
    """The users of one front."""

    def __init__(self, front: str, users: Sequence[FrontUser]) -> None:
        """Raises ConfigurationError: the file of a password is missing or no text."""
        self._passwords = {user.name: _password(front, user) for user in users}
        self._principals = {user.name: principal_of(user.name, user.scopes) for user in users}
        self._secret = random_bytes(SCRAM_SECRET)
        self._keys: dict[str, ScramKeys] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._passwords

    def is_as_before(self, name: str, before: FrontUsers) -> bool:
        """Whether there is such a user, with the password that it had."""
        return name in self and self._passwords[name] == before._passwords.get(name)

    def authenticate(self, name: str, password: str) -> bool:
        """Whether that is the user's password. A user without one logs in by certificate only."""
        known = self._passwords.get(name)
        if not known:
            return False
        return compare_digest(known.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass"))

    def scram(self, name: str) -> ScramKeys:
        """What SCRAM compares with; of a user that does not exist, keys that fit no password."""
        keys = self._keys.get(name)
        if keys is None:
            password = self._passwords.get(name)
            try:
                if not password:
                    return no_scram_keys(name, self._secret)
                keys = scram_keys(password, random_bytes(SALT_OCTETS))
            except SaslError:
                return no_scram_keys(name, self._secret)
            self._keys[name] = keys
        return keys

    def principal(self, name: str) -> Principal:
        """What the user may do."""
        return self._principals[name]


def _password(front: str, user: FrontUser) -> str:
    if not user.password_file:
        return user.password
    where = f"fronts.{front}.users.{user.name}.password_file"
    try:
        found = Path(user.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: {user.password_file}: {error}") from None
    if not found:
        raise ConfigurationError(f"{where}: {user.password_file} is empty")
    return found
