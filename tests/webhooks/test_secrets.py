"""Secrets at rest."""

from __future__ import annotations

import re
import stat
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.errors import ConfigurationError
from gateway.webhooks.settings.secrets import KEYS_MAX, Seals, load_seals

KEY, OTHER = bytes(32), bytes(range(32))


def test_what_is_sealed_opens_for_its_purpose_alone() -> None:
    seals = Seals([KEY])
    sealed = seals.seal("endpoint shop", "geheim €")
    assert seals.open(["endpoint shop"], sealed) == "geheim €"
    assert "geheim" not in sealed
    assert re.fullmatch(r"1\.[0-9a-f]{8}\.[A-Za-z0-9_=-]+", sealed)
    with pytest.raises(ConfigurationError, match="changed or moved"):
        seals.open(["endpoint other"], sealed)


def test_it_is_aes_256_gcm() -> None:
    octets = urlsafe_b64decode(Seals([KEY], lambda count: b"n" * count).seal("p", "text").split(".")[2])
    assert octets[:12] == b"n" * 12
    assert AESGCM(KEY).decrypt(octets[:12], octets[12:], b"p") == b"text"


def test_no_two_are_alike() -> None:
    seals = Seals([KEY])
    assert len({seals.seal("p", "text") for _ in range(100)}) == 100


def test_each_changed_octet_is_noticed() -> None:
    seals = Seals([KEY])
    form, name, encoded = seals.seal("p", "text").split(".")
    octets = urlsafe_b64decode(encoded)
    for index in range(len(octets)):
        changed = bytearray(octets)
        changed[index] ^= 1
        with pytest.raises(ConfigurationError):
            seals.open(["p"], f"{form}.{name}.{urlsafe_b64encode(changed).decode()}")


@pytest.mark.parametrize(
    "sealed", ["", "1", "1..", "2.{name}.AAAA", "1.{name}.", "1.{name}.AAAA", "1.{name}.!", "1.0.AA"]
)
def test_what_is_no_seal(sealed: str) -> None:
    seals = Seals([KEY])
    with pytest.raises(ConfigurationError):
        seals.open(["p"], sealed.format(name=seals.name))


def test_a_key_is_replaced_by_a_line_before_it() -> None:
    old = Seals([KEY]).seal("p", "old")
    both = Seals([OTHER, KEY])
    assert both.open(["p"], old) == "old"
    new = both.seal("p", "new")
    assert Seals([OTHER]).open(["p"], new) == "new"
    with pytest.raises(ConfigurationError, match=f"sealed with the key {Seals([KEY]).name}"):
        Seals([OTHER]).open(["p"], old)


def test_a_file_is_made_once_and_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "secrets.key"
    sealed = load_seals("", path).seal("p", "text")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_seals("", path).open(["p"], sealed) == "text"
    assert load_seals(str(path), tmp_path / "none").open(["p"], sealed) == "text"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (None, "No such file"),
        (b"", "1 to 16 are needed"),
        (b"AAAA\n", "each of 32 octets"),
        (b"!!!\n", "not keys in base64"),
        (b"\xff\n", "not keys in base64"),
        ((b64encode(KEY) + b"\n") * (KEYS_MAX + 1), "1 to 16 are needed"),
    ],
)
def test_files_that_hold_no_keys(tmp_path: Path, octets: bytes | None, why: str) -> None:
    path = tmp_path / "keys"
    if octets is not None:
        path.write_bytes(octets)
    with pytest.raises(ConfigurationError, match=f"ledger.secrets_file: .*{why}"):
        load_seals(str(path), tmp_path / "none")
