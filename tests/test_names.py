"""The check of the names finds what it is for; the suite ``layers`` has the package pass it."""

from __future__ import annotations

from tests.names import AMBIGUOUS_MAX, RENAMES_MAX, check, count


def test_it_counts() -> None:
    counts = count(
        {
            "gateway/a.py": '"""Text."""\n\nclass Lease:\n    """More."""\n    x = 1  # why\n',
            "gateway/b.py": "from gateway.a import Lease as Other\nclass Lease: ...\nclass _Own: ...\n",
            "gateway/c.py": "from gateway.v08 import x as x\nimport gateway.b as b\n"
            "import time\ntime.time()\nclass _Own: ...\n",
            "gateway/v08/d.py": 'import json as j\nclass Lease: ...\nname = "0-8"\n',
        }
    )
    assert (counts.files, counts.code) == (4, 13)
    assert counts.renames == ["gateway/b.py: Lease as Other", "gateway/c.py: gateway.b as b"]
    assert counts.ambiguous == {"Lease": ["gateway/a.py", "gateway/b.py"]}
    assert counts.imported_once == 2
    assert counts.version_namers == ["gateway/c.py"]
    assert counts.seam_breaks == 1


def test_it_says_what_is_too_much() -> None:
    lines = [f"from gateway.a import b{number} as c{number}" for number in range(RENAMES_MAX + 1)]
    wrong = check(count({"gateway/x.py": "\n".join(lines)}))
    assert wrong[0] == "11 imports rename, at most 10 may: choose a name that needs none"
    assert wrong[1] == "  gateway/x.py: b0 as c0"
    source = "\n".join(f"class C{number}: ..." for number in range(AMBIGUOUS_MAX + 1))
    wrong = check(count({"gateway/x.py": source, "gateway/y.py": source}))
    assert wrong[0] == "61 class names have several meanings, at most 60 may: rename one"
    assert wrong[1] == "  C0: gateway/x.py, gateway/y.py"
