"""A disk that loses its power: what of the recorded steps is on it afterwards.

The rules are those of POSIX, and not of one file system. What was written to a file is on the disk once the file is
synced. A name is in its folder once the folder is synced. Everything else may be there or not, or may be there in part:
each write is cut into sectors, each of which arrives or does not.

A sector that arrives does so as a whole, and a write changes nothing beside what it writes. SQLite relies on both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.powerloss.recording import Step

SECTOR: Final = 512
KINDS: Final = ("nothing", "all", "prefix", "sectors", "files", "garbage")
"""What a loss of power leaves of the steps that were not synced: none of them; all of them; those before a moment, the
last one torn; any sectors of them; those of some files, while other files and names are as they were; and any sectors,
with rubbish in the place of others."""
HOLLOW: Final = ("-shm",)
"""Ends of names of files that are shared memory: their content is not recorded, and does not survive a start."""


@dataclass(eq=False)
class File:
    """A file under any name. ``synced`` is on the disk for sure, ``since`` may be."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    """The number of the step, where, and what; None: that the file is as long as this."""


@dataclass(eq=False)
class Change:
    """Names that one step gave or took, which arrives as a whole or not at all."""

    number: int
    folders: frozenset[str]
    names: tuple[tuple[str, File | None], ...]
    """None: the name is gone. A folder is an empty file that nobody writes to."""


FOLDER: Final = File()


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


class Disk:
    """Takes steps, and says what may be left of them."""

    def __init__(self) -> None:
        self._now: dict[str, File] = {}
        self._synced: dict[str, File] = {}
        self._since: list[Change] = []
        self._inodes: dict[int, File] = {}
        self._number = 0

    def take(self, step: Step) -> None:
        """The next step."""
        self._number += 1
        kind = step.kind
        if kind == "c":
            file = self._inodes[step.inode] = File()
            self._rename((step.path, file))
        elif kind == "w":
            self._inodes[step.inode].since.append((self._number, step.at, step.data))
        elif kind == "t":
            self._inodes[step.inode].since.append((self._number, step.at, None))
        elif kind == "s":
            file = self._inodes[step.inode]
            for _, at, data in file.since:
                _apply(file.synced, at, data)
            file.since.clear()
        elif kind == "d":
            self._sync_folder(step.path)
        elif kind == "r":
            self._rename((step.data.decode(), self._now[step.path]), (step.path, None))
        elif kind == "l":
            self._rename((step.data.decode(), self._now[step.path]))
        elif kind in "ux":
            self._rename((step.path, None))
        elif kind == "m":
            self._rename((step.path, FOLDER))

    def _rename(self, *names: tuple[str, File | None]) -> None:
        folders = frozenset(_folder_of(path) for path, _ in names)
        self._since.append(Change(self._number, folders, names))
        _name(self._now, names)

    def _sync_folder(self, path: str) -> None:
        """Names of the folder are there from now on, and with them all that the same changes did elsewhere."""
        left = []
        for change in self._since:
            if path in change.folders:
                _name(self._synced, change.names)
            else:
                left.append(change)
        self._since = left

    @property
    def is_certain(self) -> bool:
        """There is nothing that may be lost."""
        return not self._since and not any(file.since for file in self._files())

    def after(self, kind: str, chance: random.Random) -> dict[str, bytes | None]:
        """The files after a loss of power now: path -> content, None for a folder."""
        numbers = [change.number for change in self._since]
        numbers += [number for file in self._files() for number, _, _ in file.since]
        until = {"nothing": 0, "all": self._number}.get(kind, chance.choice(numbers or [0]))
        share = chance.choice((0.1, 0.5, 0.9))
        names = dict(self._synced)
        kept: dict[int, bool] = {}
        for change in self._since:
            arrives = change.number <= until if kind in ("nothing", "all", "prefix") else chance.random() < share
            if arrives:
                _name(names, change.names)

        def choose(file: File, number: int) -> bool | None:
            if kind in ("sectors", "garbage"):
                return None
            if kind == "files":
                return kept.setdefault(id(file), chance.random() < 0.5)
            return None if kind == "prefix" and number == until else number <= until

        content: dict[int, bytes] = {}
        found: dict[str, bytes | None] = {}
        for path in sorted(names):
            if not _is_there(path, names):
                continue
            file = names[path]
            if file is FOLDER:
                found[path] = None
                continue
            if id(file) not in content:
                content[id(file)] = _left(file, kind, choose, share, chance)
            found[path] = bytes(len(content[id(file)])) if path.endswith(HOLLOW) else content[id(file)]
        return found

    def _files(self) -> list[File]:
        return list(dict.fromkeys([*self._now.values(), *self._synced.values()]))


def _is_there(path: str, names: dict[str, File]) -> bool:
    """Whether all folders on the way to it are."""
    folder = _folder_of(path)
    return not folder or (folder in names and _is_there(folder, names))


def _name(names: dict[str, File], given: tuple[tuple[str, File | None], ...]) -> None:
    for path, file in given:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    end = at if data is None else at + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at:end] = data


def _left(
    file: File, kind: str, choose: Callable[[File, int], bool | None], share: float, chance: random.Random
) -> bytes:
    """What is left of a file."""
    if not file.since:
        return bytes(file.synced)
    content = bytearray(file.synced)
    for number, at, data in file.since:
        whole = choose(file, number)
        if whole is False:
            continue
        if whole or data is None:
            if whole or chance.random() < share:
                _apply(content, at, data)
            continue
        begin, end = at, at + len(data)
        torn = chance.randint(begin, end) if kind == "prefix" else end
        while begin < end:
            upto = min(end, (begin // SECTOR + 1) * SECTOR)
            if kind == "prefix":
                if upto > torn:
                    break
                _apply(content, begin, data[begin - at : upto - at])
            elif chance.random() < share:
                _apply(content, begin, data[begin - at : upto - at])
            elif kind == "garbage" and chance.random() < 0.3:
                _apply(content, begin, chance.randbytes(upto - begin))
            begin = upto
    return bytes(content)


def write(files: dict[str, bytes | None], folder: Path) -> None:
    """Put files into an empty folder."""
    for path, content in sorted(files.items()):
        if content is None:
            (folder / path).mkdir(mode=0o700)
        else:
            (folder / path).write_bytes(content)
            (folder / path).chmod(0o600)
