"""The head of the audit log, kept outside the database: by it a cut at the end, or a chain made again, is seen.

The head is the number, hash and MAC of the newest row that this process knows of. It is written to a file within
:data:`WRITE_EVERY` seconds after the row, whole and synced, so that a burst of rows costs one write. Rows that are
younger than that, when the process dies, are not in the file.

Once in :data:`LOOK_EVERY` seconds the newest row is looked at. What is wrong with the log is logged, counted as
``amqpgw_audit_log_broken``, and said by a row of the log itself. From then on the file keeps the row that was known,
for it shows what is missing. After a look into it, remove the file; the process goes on with a new one.

Each process keeps what it knows of itself. Where several write to one file, the highest row counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config import AuditSettings
from gateway.durable import flush
from gateway.errors import ConfigurationError, LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.access.audit import AuditHead
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.threads import threads

FILE: Final = "audit.head"
"""Name of the file in the data folder."""
SIZE_MAX: Final = 4_096
"""Largest file that is read, in bytes."""
WRITE_EVERY: Final = 1.0
"""Pause between two writes of the file, in seconds."""
LOOK_EVERY: Final = 60.0
"""Pause between two looks at the newest row, in seconds."""
HASH: Final = 32

Tell = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Sends a head to an endpoint; why it was not taken, or empty."""


class _Kept(msgspec.Struct, forbid_unknown_fields=False):
    """The file."""

    sequence: int
    hash: str
    mac: str = ""
    at: float = 0.0


def head_path(settings: AuditSettings, data_dir: Path) -> Path:
    """Where the file is."""
    return Path(settings.head_file) if settings.head_file else data_dir / FILE


def read_head(path: Path) -> AuditHead | None:
    """What the file says; None: it is not there.

    Raises:
        ConfigurationError: it is something else, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            kept = msgspec.json.decode(file.read(SIZE_MAX), type=_Kept)
        head = AuditHead(kept.sequence, bytes.fromhex(kept.hash), bytes.fromhex(kept.mac))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"audit.head_file: {path}: {error.strerror}") from None
    except (ValueError, msgspec.DecodeError):
        head = AuditHead(0, b"")
    if head.sequence < 1 or len(head.hash) != HASH or len(head.mac) not in (0, HASH):
        raise ConfigurationError(
            f"audit.head_file: {path}: not a head of the audit log. Put its copy back, or remove it: then a cut of "
            "before cannot be seen"
        )
    return head


def write_head(path: Path, head: AuditHead, at: float) -> None:
    """Replace the file as a whole, and sync it. A head of a later row is left as it is.

    Raises:
        ConfigurationError: the file is there, and is something else.
        OSError: it cannot be written.
    """
    before = read_head(path)
    if before is not None and before.sequence > head.sequence:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(_Kept(head.sequence, head.hash.hex(), head.mac.hex(), round(at, 3))) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    flush(path.parent)


class Heads:
    """Keeps the head, and sends it."""

    def __init__(
        self,
        ledger: Ledger,
        settings: AuditSettings,
        data_dir: Path,
        metrics: Metrics,
        tell: Tell | None = None,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        """``tell`` sends to ``settings.send_endpoint``."""
        self._audit = ledger.audit
        self._settings = settings
        self._path = head_path(settings, data_dir)
        self._metrics = metrics
        self._tell = tell if settings.send_endpoint else None
        self._clock = clock
        self._written: AuditHead | None = None
        self._trouble = ""
        """Why the file was not written; empty: it was."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()

    async def start(self) -> None:
        """Take the head up from the file, look whether the log goes on from it, and keep it from now on.

        Raises:
            ConfigurationError: the file is something else.
            LedgerUnavailable: the ledger cannot be read.
        """
        self._audit.head = self._written = await threads.run(read_head, self._path)
        await self._look()
        await self._write()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(), name="audit-head")]
        if self._settings.send_log or self._settings.send_file or self._tell is not None:
            self._tasks.append(loop.create_task(self._send_again(), name="audit-head-sent"))

    async def close(self) -> None:
        """Write the last head, and end."""
        self._closing.set()
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await self._write()

    async def _keep(self) -> None:
        due = clock.monotonic() + LOOK_EVERY
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), WRITE_EVERY)
            try:
                if clock.monotonic() >= due:
                    due = clock.monotonic() + LOOK_EVERY
                    await self._look()
                await self._write()
            except LedgerUnavailable as error:
                log("audit.head_waits", logging.DEBUG, reason=str(error))
            except Exception as error:  # a defect of ours; the head of before stays
                log("audit.head_failed", logging.ERROR, error)

    async def _send_again(self) -> None:
        while True:
            await clock.sleep(self._settings.send_every)
            try:
                await self._send()
            except LedgerUnavailable as error:
                log("audit.head_waits", logging.DEBUG, reason=str(error))
            except Exception as error:  # a defect of ours; the next head is sent all the same
                log("audit.head_failed", logging.ERROR, error)

    async def _look(self) -> None:
        await self._audit.look(int(self._clock() * 1_000_000))
        self._metrics.audit_log_broken.set(1 if self._audit.broken else 0)

    async def _write(self) -> None:
        """Write the head, if there is another than the one in the file."""
        head = self._audit.head
        if head is None:
            return
        self._metrics.audit_log_row.set(head.sequence)
        if self._audit.broken:
            self._metrics.audit_log_broken.set(1)
            if (missed := self._audit.missed) is not None and missed != self._written:
                await self._write_this(missed)  # it shows what is missing
                return
            if await threads.run(self._path.exists):
                return
            self._audit.broken = ""  # somebody has looked into it, and took the file away
            self._metrics.audit_log_broken.set(0)
            self._written = None
        if head != self._written:
            await self._write_this(head)

    async def _write_this(self, head: AuditHead) -> None:
        try:
            await threads.run(write_head, self._path, head, self._clock())
        except (OSError, ConfigurationError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log("audit.head_not_written", logging.ERROR, file=str(self._path), detail=self._trouble)
            return
        if self._trouble:
            self._trouble = ""
            log("audit.head_written", file=str(self._path))
        self._written = head

    # ------------------------------------------------------------------------------------------------- sending

    async def _send(self) -> None:
        """Send the head to its receivers; what fails is logged, and comes with the next one."""
        await self._look()
        head, settings = self._audit.head, self._settings
        if head is None:
            return
        text, mac, broken = f"{head.sequence}:{head.hash.hex()}", head.mac.hex(), self._audit.broken
        fields = {"head": text, "mac": mac, "at": round(self._clock(), 3), "broken": broken}
        if settings.send_log:
            log("audit.head", head=text, mac=mac, broken=broken)
        if settings.send_file:
            try:
                await threads.run(_add_line, Path(settings.send_file), msgspec.json.encode(fields))
            except OSError as error:
                log("audit.head_not_sent", logging.WARNING, to=settings.send_file, detail=str(error))
        if self._tell is not None and (why := await self._tell(fields)):
            log("audit.head_not_sent", logging.WARNING, to=settings.send_endpoint, detail=why)


def _add_line(path: Path, line: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
