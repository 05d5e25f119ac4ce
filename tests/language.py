"""Language check: banned turns and long sentences in the lines that a change adds.

``python -m tests.language`` compares the working tree with the merge base of ``HEAD`` and ``main``, or with the commit
before ``HEAD`` where that is the same. ``--base COMMIT`` names another one. It reads prose only: Markdown outside of
code, comments, docstrings, and the messages of the gateway. Text between backticks is code and is left out. Each
finding is one line: where, what, and what to write instead. In an archive or a clone of one commit there is nothing to
compare with: it says so and checks nothing.

``--whole`` counts the turns and the long sentences of all pages, docstrings and messages instead, and holds them
against :data:`LIMITS`; ``--list`` prints each place.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORDS_MAX: Final = 35
"""A sentence has about 25 words at most. What is reported is well beyond that."""
BRANCHES: Final = ("main", "origin/main")
"""Where changes go to."""
EXEMPT: Final = frozenset({"tests/language.py", "tests/test_language.py", "RELIABILITY.md"})
"""Files that hold the turns on purpose, or that a program writes from older texts."""
COMMENTED: Final = frozenset({".sh", ".toml", ".yml", ".yaml", ".cfg"})
"""Suffixes of files whose prose is in lines that begin with ``#``."""

TURNS: Final[tuple[tuple[str, str], ...]] = (
    (r"of later\b", "scheduled"),
    (r"(?<!there )(?:is|are) (?-i:none)\b", "is missing, there is no …"),
    (r"(?:so|as) many (?:seconds|messages|bytes|times)\b", "this many, the number of …"),
    (r"anew\b", "again"),
    (r"by itself\b", "automatically, alone"),
    (r"by and by\b", "gradually"),
    (r"mend(?:s|ed|ing)?\b", "fix"),
    (r"(?:whoever|whatever|that which)\b", "the name of the subject: the caller, every queue that …"),
    (r"(?:is|are|was|were) (?:told|said)\b", "a verb with a subject: the gateway reports …"),
    (r"it is (?:looked|listened|waited|asked) for\b", "a verb with a subject: the gateway checks …"),
    (r"ours\b", "the gateway's"),
    (r"(?:is|are) owed\b", "pending"),
    (r"nobody need\b", "you do not need"),
    (r"(?:behaviour|colour|favour|honour|neighbour)\w*", "the American spelling: behavior, color, …"),
    (r"(?:licence|defence|offence)s?\b", "the American spelling: license, defense, …"),
    (r"(?:recogni|normali|seriali|initiali|organi|optimi|authori)s(?:e|es|ed|ing)\b", "the American spelling: -ize"),
    (r"(?:graves?|burials?)\b", "dead letter, dead-letter destination"),
    (r"told apart\b", "distinguished, grouped"),
    (r"(?:comes?|came) to count\b", "takes effect"),
    (r"lets? go of\b", "releases, deletes"),
)
"""What not to write, as a regular expression after a word boundary, and what to write instead."""
_TURNS: Final = tuple((re.compile(rf"\b{turn}", re.IGNORECASE), instead) for turn, instead in TURNS)

_ANY: Final = re.compile("|".join(rf"\b(?:{turn})" for turn, _ in TURNS), re.IGNORECASE)

_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")
_LINK: Final = re.compile(r"\]\([^)]*\)|https?://\S+|:[a-z]+:`[^`]*`")
_END: Final = re.compile(r"[.!?:;][)\"'*_]*(?=\s|$)|\s\|\s|^\s*$|^\s*(?:[-*]|\d+\.)\s", re.MULTILINE)
_HUNK: Final = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


CLAUSE: Final = re.compile(r"[\s*_(]*(?:What|Who|Whose)\b(?![^?]*\?)")
"""A clause in place of a subject at the beginning of a sentence of a page: name the subject."""
SENTENCE: Final = re.compile(r"[.!?][)\"'*_]*(?=\s|$)|\s\|\s|\n\s*\n|^\s*(?:[-*]|\d+\.)\s", re.MULTILINE)
"""Where a sentence of the whole project ends."""
LONG: Final = 28
"""Most words of a sentence that is not long, in the whole project."""
LIMITS: Final[Mapping[str, tuple[int, int]]] = {"pages": (12, 80), "docstrings": (12, 40), "messages": (12, 40)}
"""Kind of text -> most turns and most long sentences in a thousand sentences. Lower them when the texts are better."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that needs other words."""

    file: str
    line: int
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: write {self.instead}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of prose, and the number of its first line."""

    line: int
    words: str


# -------------------------------------------------------------------------------------------------- what changed


def _git(*arguments: str) -> str | None:
    """What git prints; None where it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def base() -> str | None:
    """Return the commit to compare with; None where there is none here."""
    head = (_git("rev-parse", "HEAD") or "").strip()
    for branch in BRANCHES:
        found = (_git("merge-base", "HEAD", branch) or "").strip()
        if found and found != head:
            return found
    return (_git("rev-parse", "--verify", "--quiet", "HEAD~1") or "").strip() or None


def added(commit: str) -> dict[str, set[int]]:
    """Return file -> numbers of the lines that are new since a commit, uncommitted and untracked ones included."""
    found: dict[str, set[int]] = {}
    name = ""
    for line in (_git("diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-prefix", commit) or "").splitlines():
        if line.startswith("+++ "):
            name = line[4:].rstrip("\t")
        elif (hunk := _HUNK.match(line)) is not None:
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(name, set()).update(range(first, first + count))
    for name in (_git("ls-files", "--others", "--exclude-standard") or "").splitlines():
        found[name] = set(range(1, 100_000))
    return {name: lines for name, lines in found.items() if lines and (ROOT / name).is_file()}


# --------------------------------------------------------------------------------------------------------- prose


def prose(file: str, content: str) -> Iterator[Text]:
    """Yield the prose of a file, piece by piece."""
    suffix = Path(file).suffix
    if suffix == ".md":
        yield from _paragraphs(content)
    elif suffix == ".py":
        yield from _comments(content)
        yield from _strings(content, messages=not file.startswith("tests/"))
    elif suffix in COMMENTED or Path(file).name == "Makefile":
        lines = content.splitlines()
        yield from _blocks([(number, line.lstrip()) for number, line in enumerate(lines, 1)], "#")


def _paragraphs(content: str) -> Iterator[Text]:
    """Markdown without code: paragraphs, items and rows."""
    block: list[str] = []
    first, fenced = 1, False
    for number, line in enumerate([*content.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced = fenced != fence
        alone = fence or fenced or not line.strip() or line.startswith(("|", "#", "    "))
        if block and (alone or re.match(r"\s*([-*]|\d+\.)\s", line)):
            yield Text(first, "\n".join(block))
            block = []
        if alone:
            if line.startswith("|") and not fenced:
                yield Text(number, line)
            continue
        if not block:
            first = number
        block.append(line)


def _comments(content: str) -> Iterator[Text]:
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    yield from _blocks([(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT], "#")


def _blocks(lines: Sequence[tuple[int, str]], mark: str) -> Iterator[Text]:
    """Comments; those of neighboring lines are one text."""
    block: list[str] = []
    first = last = 0
    for number, line in lines:
        if not line.startswith(mark):
            continue
        if block and number != last + 1:
            yield Text(first, "\n".join(block))
            block = []
        if not block:
            first = number
        block.append(line.lstrip(mark + "! "))
        last = number
    if block:
        yield Text(first, "\n".join(block))


NOTATIONS: Final = {"unserved"}
"""Functions whose text is a table in a notation of its own, and no prose."""


def _strings(content: str, messages: bool) -> Iterator[Text]:
    """Docstrings (of attributes, too), and with ``messages`` every other string that looks like prose."""
    tree = ast.parse(content)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    inside |= {id(part) for call in calls if call.func.id in NOTATIONS for part in call.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and messages:
            parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            words = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            if not messages and id(node) not in documents:
                continue
            words = node.value
        else:
            continue
        if len(words.split()) >= 3:
            yield Text(node.lineno, _without_diagrams(words))


def _without_diagrams(words: str) -> str:
    """Blank what stands indented behind a line that ends with ``::``: a diagram, a table or an example."""
    lines: list[str] = []
    above: int | None = None
    for line in words.split("\n"):
        indent = len(line) - len(line.lstrip())
        if above is not None and line.strip() and indent <= above:
            above = None
        lines.append("" if above is not None else line)
        if above is None and line.rstrip().endswith("::"):
            above = indent
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------ judgment


def check(file: str, content: str, lines: set[int]) -> Iterator[Finding]:
    """Yield what is wrong with the prose of these lines of a file."""
    for text in prose(file, content):
        span = range(text.line, text.line + text.words.count("\n") + 1)
        if lines.isdisjoint(span):
            continue
        words = _LINK.sub(" ", _CODE.sub(_blank, text.words))
        for turn, instead in _TURNS:
            for found in turn.finditer(words):
                line = text.line + words.count("\n", 0, found.start())
                if line in lines or len(span) == 1:
                    yield Finding(file, line, f'"{found[0]}"', instead)
        start = 0
        for end in [*(found.end() for found in _END.finditer(words)), len(words)]:
            start += len(words[start:end]) - len(words[start:end].lstrip())
            sentence, first = words[start:end], text.line + words.count("\n", 0, start)
            start = end
            number = len([word for word in sentence.split() if any(map(str.isalnum, word))])
            if number > WORDS_MAX and not lines.isdisjoint(range(first, first + sentence.count("\n") + 1)):
                yield Finding(file, first, f"a sentence of {number} words", "two or more, of about 25 words at most")


# --------------------------------------------------------------------------------------------- the whole project


@dataclass(slots=True)
class Count:
    """Sentences of one kind of text, and the places that need other words."""

    sentences: int = 0
    turns: list[Finding] = field(default_factory=list)
    long: list[Finding] = field(default_factory=list)

    def add(self, file: str, text: Text, clauses: bool) -> None:
        """Count the sentences of a text; with ``clauses`` also those that begin with a clause in place of a subject."""
        words = _LINK.sub(" ", _CODE.sub(_blank, text.words))
        start = 0
        for end in [*(found.end() for found in SENTENCE.finditer(words)), len(words)]:
            sentence, line = words[start:end], text.line + words.count("\n", 0, start)
            start = end
            number = len([word for word in sentence.split() if any(map(str.isalnum, word))])
            self.sentences += number >= 3
            for turn, instead in _TURNS if _ANY.search(sentence) else ():
                self.turns += [Finding(file, line, f'"{found[0]}"', instead) for found in turn.finditer(sentence)]
            if clauses and CLAUSE.match(sentence):
                self.turns.append(
                    Finding(file, line, f'"{" ".join(sentence.split()[:3])} …"', "the name of the subject")
                )
            if number > LONG:
                self.long.append(Finding(file, line, f"a sentence of {number} words", f"at most {LONG}"))

    def rate(self) -> tuple[float, float]:
        """Return turns and long sentences in a thousand sentences."""
        return 1000 * len(self.turns) / self.sentences, 1000 * len(self.long) / self.sentences


def whole() -> dict[str, Count]:
    """Return kind of text -> what there is of it in the project."""
    found = {kind: Count() for kind in LIMITS}
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]:
        file = path.relative_to(ROOT).as_posix()
        if file not in EXEMPT | {"CHANGELOG.md"}:
            for text in _paragraphs(path.read_text(encoding="utf-8")):
                found["pages"].add(file, text, clauses=True)
    for package in ("gateway", "pyspark_gateway"):
        for path in sorted((ROOT / package).rglob("*.py")):
            file, content = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            documents = set(_strings(content, messages=False))
            for text in _strings(content, messages=True):
                found["docstrings" if text in documents else "messages"].add(file, text, clauses=False)
    return found


def _judge_whole(show: bool) -> int:
    failed = False
    for kind, count in whole().items():
        if show:
            for finding in [*count.turns, *count.long]:
                print(finding)
        turns, long = count.rate()
        most = LIMITS[kind]
        failed = failed or turns > most[0] or long > most[1]
        print(
            f"{kind}: {turns:.1f} turns (at most {most[0]}) and {long:.1f} sentences of more than {LONG} words "
            f"(at most {most[1]}) in a thousand, of {count.sentences:,}"
        )
    return 1 if failed else 0


def _blank(found: re.Match[str]) -> str:
    """Code counts as one word, and keeps its line breaks."""
    return "x" + "\n" * found[0].count("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.language", description="Check the language of a change.")
    parser.add_argument("--base", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--whole", action="store_true", help="count the texts of the whole project")
    parser.add_argument("--list", action="store_true", help="with --whole: print each place")
    options = parser.parse_args(arguments)
    if options.whole:
        return _judge_whole(options.list)
    commit = options.base or base()
    if commit is None:
        print("There is no earlier commit here to compare with: nothing was checked. Name one with --base.")
        return 0
    if _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        print(f"{commit!r} is no commit of this repository: name another one with --base.", file=sys.stderr)
        return 2
    files = {file: lines for file, lines in sorted(added(commit).items()) if file not in EXEMPT}
    found: list[Finding] = []
    for file, lines in files.items():
        if Path(file).suffix in {".md", ".py", *COMMENTED} or Path(file).name == "Makefile":
            found += check(file, (ROOT / file).read_text(encoding="utf-8"), lines)
    for finding in found:
        print(finding)
    print(f"{len(found)} findings in {len(files)} changed files since {commit[:12]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
