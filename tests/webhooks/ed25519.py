"""Verification of ed25519 signatures by the definition (RFC 8032 section 5.1.7), in plain integers: slow, and owing
nothing to the library that signs."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)
"""Of -1."""
Point = tuple[int, int]
BASE_Y = 4 * pow(5, -1, P) % P


def x_of(y: int, odd: int) -> int | None:
    """The x of a point on the curve -x² + y² = 1 + d x² y² (section 5.1.3)."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and odd):
        return None
    return x if x & 1 == odd else P - x


def decode(octets: bytes) -> Point | None:
    """A point from 32 octets."""
    number = int.from_bytes(octets, "little")
    y, odd = number & (1 << 255) - 1, number >> 255
    x = x_of(y, odd) if y < P else None
    return None if x is None else (x, y)


def add(a: Point, b: Point) -> Point:
    """The law of the curve (section 5.1.4), without tricks."""
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P) % P
    return x, y


def times(number: int, point: Point) -> Point:
    """A multiple of a point."""
    result: Point = (0, 1)
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def verifies(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether S·B = R + k·A."""
    if len(public) != 32 or len(signature) != 64:
        return False
    key, r = decode(public), decode(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    base_x = x_of(BASE_Y, 0)
    if key is None or r is None or base_x is None or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + text).digest(), "little") % ORDER
    return times(s, (base_x, BASE_Y)) == add(r, times(k, key))
