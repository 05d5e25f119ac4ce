"""The checks of shapes and circles find what they are for; the suite ``layers`` has the package pass them."""

from __future__ import annotations

from tests import circles
from tests.shapes import CHANGING_MAX, PARAMETERS_MAX, check, over, shapes

SOURCE = """
class Small:
    def __init__(self, a, /, b, *args, c=1, **rest): self.x = self.y = 0
    def move(self): self.x, (self.y, other.z) = 1, (2, 3)
    async def turn(self):
        self.x += 1
        self.w: int = 2
        print(self.v)
"""


def test_it_counts_parameters_and_attributes_that_change() -> None:
    (shape,) = shapes("gateway/a.py", SOURCE)
    assert (shape.name, shape.parameters, shape.changing) == ("gateway/a.py Small", 3, {"x", "y", "w"})


def test_it_says_what_is_too_much() -> None:
    parameters = ", ".join(f"p{number}" for number in range(PARAMETERS_MAX + 1))
    assigned = "; ".join(f"self.a{number} = 0" for number in range(CHANGING_MAX + 1))
    source = f"class C:\n    def __init__(self, {parameters}): ...\n    def f(self): {assigned}\n"
    found = over({"gateway/x.py": source})
    assert found == {"parameters of gateway/x.py C": 8, "attributes of gateway/x.py C": 16}
    advice = "give what belongs together a name of its own"
    assert check(found, {}) == [
        f"attributes of gateway/x.py C: 16, at most 15 may be: {advice}",
        f"parameters of gateway/x.py C: 8, at most 7 may be: {advice}",
    ]
    exempt = {
        "parameters of gateway/x.py C": (8, "why"),
        "attributes of gateway/x.py C": (15, "why"),
        "gone": (9, "why"),
    }
    assert check(found, exempt) == [
        "attributes of gateway/x.py C: 16, at most 15 may be by its exemption",
        "gone: it needs no exemption any more: take it out",
    ]


def test_it_finds_circles_that_only_type_checkers_follow() -> None:
    sources = {
        "gateway/p/__init__.py": "from gateway.p.a import A\n",
        "gateway/p/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gateway.p.b import B\n",
        "gateway/p/b.py": "import gateway.p.c\n",
        "gateway/p/c.py": "def f():\n    from gateway.p import a\n",
        "gateway/p/d.py": "from gateway.p import a\nfrom gateway.q import x\n",
        "gateway/q/x.py": "from gateway.p import d\n",
    }
    assert circles.by_package(sources) == {"gateway.p": [["gateway.p.a", "gateway.p.b", "gateway.p.c"]]}
    assert circles.check({"gateway.p": [["gateway.p.a", "gateway.p.b"]]}, {"gateway.q": 2}) == [
        "gateway.p: 2 modules import each other in circles, and 0 may: move what both need into a third",
        "gateway.q: 0 modules import each other in circles, and 2 may: take that number down",
    ]
