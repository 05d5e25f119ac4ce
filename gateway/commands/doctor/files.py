"""What lies on the disk: the data folder, files with secrets, our own certificates; and what the system allows us.

Nothing is written: the system says whether a folder can be written. Its findings hold for the user who runs it, so
``gateway doctor`` is best run as the user that the service runs as.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import zoneinfo
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.network import judge_dates, judge_file, read_certificates
from gateway.config import Config, TlsSettings
from gateway.core.work.peers import SECRET_MIN
from gateway.errors import ConfigurationError, EncodeError
from gateway.ledger.db.disk import reserve_of
from gateway.ledger.db.engine import Database
from gateway.runtime.clock import clock
from gateway.transports import client_context
from gateway.transports.tls import ServerTls
from gateway.webhooks.settings.secrets import load_seals

SPACE_LOW: Final = 1 << 30
"""Less free space than this is worth a word, in octets."""
SPACE_NONE: Final = 64 << 20
"""With less, files cannot be counted on to be written."""
ACK_KEY: Final = 32
"""Octets of ``ack-ids.key``."""
SPARE_FILES: Final = 128
"""Files that the process has open besides connections: the ledger, libraries, logs."""
YEAR_MIN: Final = 2025
"""A clock that says an earlier year was never set."""
ZONES: Final = ("/usr/share/zoneinfo/Etc/UTC", "/usr/share/zoneinfo/UTC")


def examine(report: Report, config: Config) -> None:
    """All of it."""
    _data_folder(report, config)
    _space(report, config)
    _secrets(report, config)
    _certificates(report, config)
    _open_files(report, config)
    _zone(report)


def writable(path: Path) -> bool:
    """Whether we may write there, by rights, access lists and how it is mounted."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def who() -> str:
    """Whom the system asks about."""
    return f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"


def _data_folder(report: Report, config: Config) -> None:
    path = Path(config.data_dir)
    where, there = f"data_dir {config.data_dir}", nearest(path)
    own = f"chown it to the user of the service ({who()} asked), or set data_dir to a folder that is its own."
    if not there.is_dir():
        report.fail("files.data_dir", where, f"{there} is no folder", do="Set data_dir to a folder.")
    elif not writable(there) or not os.access(there, os.X_OK):
        what = "it cannot be written" if there == path.absolute() else f"it cannot be made: {there} cannot be written"
        report.fail("files.data_dir", where, f"{what} by {who()}", why="Keys and the ledger are kept there.", do=own)
    elif there != path.absolute():
        report.ok("files.data_dir", where, "it is not there yet, and can be made")
    elif (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        report.warn(
            "files.data_dir", where, f"others may look into it (mode {mode:04o})",
            why="The ledger and the keys that seal secrets are there.", do=f"chmod 700 {path}",
        )  # fmt: skip
    else:
        report.ok("files.data_dir", where, f"it can be written by {who()}")


def database_of(config: Config) -> Database:
    """The ledger's database, looked at by nobody yet. Raises ConfigurationError."""
    try:
        return Database(config.ledger.url or f"sqlite:///{os.path.abspath(config.data_dir)}/ledger.db")
    except ValueError:  # its port
        raise ConfigurationError("ledger.url: the port is no number") from None


def _space(report: Report, config: Config) -> None:
    folders = {nearest(Path(config.data_dir))}
    with suppress(ConfigurationError):  # said with the ledger
        if (file := database_of(config).path) is not None:
            folders.add(nearest(file.parent))
    seen: set[int] = set()
    for folder in sorted(folders):
        if (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        usage, where = shutil.disk_usage(folder), str(folder)
        free, least = usage.free, max(SPACE_NONE, reserve_of(config.ledger.disk_reserve, usage.total))
        what = f"{free / (1 << 30):,.1f} GiB free" if free >= SPACE_LOW else f"{free / (1 << 20):,.0f} MiB free"
        found = os.statvfs(folder)
        if free < least or (found.f_files and not found.f_favail):
            report.fail(
                "files.space", where,
                what if free < least else "no more files can be made there (inodes)",
                why="Below ledger.disk_reserve nothing new is promised: publishes are answered with 507.",
                do="Make room.",
            )  # fmt: skip
        elif free < SPACE_LOW:
            report.warn("files.space", where, what, why="The ledger grows with traffic.", do="Make room.")
        else:
            report.ok("files.space", where, what)


# ------------------------------------------------------------------------------------------------- secrets


def _secrets(report: Report, config: Config) -> None:
    shared = config.ledger.url.startswith("postgres")
    default = Path(config.data_dir) / "secrets.key"
    file = config.ledger.secrets_file
    if file or default.exists():
        where = "ledger.secrets_file" if file else "secrets.key"
        try:
            names = load_seals(file or str(default), default).names
        except ConfigurationError as error:
            report.fail(
                "files.secret", where, str(error).removeprefix("ledger.secrets_file: "),
                why="Without it no secret of an endpoint can be opened.",
                do="Put the old file back. If there was none, make one: gateway secrets new FILE.",
            )  # fmt: skip
        else:
            report.ok("files.secret", where, f"{len(names)} sealing keys: {', '.join(names)}; the first one seals")
            owner_only(report, where, Path(file) if file else default)
    else:
        report.ok("files.secret", "secrets.key", "it will be made in the data folder at the first start")
    if shared and not file:
        report.warn(
            "files.secret", "ledger.secrets_file", "it is not set, and the ledger may have more than one gateway",
            why="What this gateway seals the others cannot open.", do="Give all of them the same file.",
        )  # fmt: skip
    ack = Path(config.data_dir) / "ack-ids.key"
    if not shared and ack.exists():
        _octets(report, "ack-ids.key", ack, ACK_KEY, exact=True)
    if config.cluster.secret_file:
        _octets(report, "cluster.secret_file", Path(config.cluster.secret_file), SECRET_MIN, exact=False)
    for name, endpoint in config.endpoints.items():
        if endpoint.auth.secret_file:
            _octets(report, f"endpoints.{name}.auth.secret_file", Path(endpoint.auth.secret_file), 1, exact=False)
    for name, front in config.fronts.items():
        for user in front.users:
            if user.password_file:
                _octets(
                    report, f"fronts.{name}.users.{user.name}.password_file", Path(user.password_file), 1, exact=False
                )
    for name, broker in config.brokers.items():
        if broker.password_file and Path(broker.password_file).is_file():  # what else is wrong the broker's check says
            owner_only(report, f"brokers.{name}.password_file", Path(broker.password_file))


def _octets(report: Report, where: str, path: Path, number: int, *, exact: bool) -> None:
    try:
        octets = path.read_bytes()
    except OSError as error:
        report.fail("files.secret", where, f"{path}: {error.strerror}", do="Correct the path, or its rights.")
        return
    length = len(octets) if exact else len(octets.strip())
    if (length != number) if exact else (length < number):
        wanted = f"{number}" if exact else f"at least {number}"
        report.fail(
            "files.secret", where, f"{path} holds {length} octets, not {wanted}",
            do="Remove it; the gateway makes a new one, and leases that are out are lost." if exact else "Fill it.",
        )  # fmt: skip
    else:
        report.ok("files.secret", where, f"{path}: it is there")
        owner_only(report, where, path)


def owner_only(report: Report, where: str, path: Path) -> None:
    """Say it where everybody on the machine may read a file."""
    if path.stat().st_mode & 0o004:
        report.warn("files.secret", where, f"{path}: everybody on this machine can read it", do=f"chmod 640 {path}")


# -------------------------------------------------------------------------------------------- certificates


def _certificates(report: Report, config: Config) -> None:
    http, embedded = config.http.tls, config.embedded.tls
    if http.cert_file and config.role != "worker":
        try:
            ServerTls(http)
        except ConfigurationError as error:
            _misfit(report, "http.tls", error)
        else:
            judge_file(report, "files.certificate", "http.tls.cert_file", http.cert_file, "our certificate")
            if http.client_ca_file:
                judge_file(report, "files.certificate", "http.tls.client_ca_file", http.client_ca_file, "the authority")
    if config.embedded.enabled and embedded.cert_file:
        try:
            ServerTls(embedded)
        except ConfigurationError as error:
            _misfit(report, "embedded.tls", error)
        else:
            judge_file(report, "files.certificate", "embedded.tls.cert_file", embedded.cert_file, "our certificate")
    for name, front in config.fronts.items():
        where, own = f"fronts.{name}.tls", front.tls
        if not own.cert_file:
            continue
        try:
            ServerTls(own, f"fronts.{name}")
        except ConfigurationError as error:
            _misfit(report, where, error)
        else:
            judge_file(report, "files.certificate", f"{where}.cert_file", own.cert_file, "our certificate")
            if own.client_ca_file:
                judge_file(report, "files.certificate", f"{where}.client_ca_file", own.client_ca_file, "the authority")
    for name, broker in config.brokers.items():
        _client(report, f"brokers.{name}.tls", broker.tls)
    for name, endpoint in config.endpoints.items():
        where, tls = f"endpoints.{name}.tls", endpoint.tls
        try:
            client_context(tls)
        except (ConfigurationError, EncodeError) as error:
            _misfit(report, where, error)
            continue
        if tls.cert:
            found = read_certificates(tls.cert.encode())
            if found and judge_dates(report, "files.certificate", where, found[0], "our certificate"):
                report.ok("files.certificate", where, f"our certificate is valid until {found[0].until}")
        elif tls.cert_file:
            judge_file(report, "files.certificate", where, tls.cert_file, "our certificate")


def _client(report: Report, where: str, tls: TlsSettings) -> None:
    if tls == TlsSettings():
        return
    try:
        client_context(tls)
    except ConfigurationError as error:
        _misfit(report, where, error)
        return
    if tls.cert_file:
        judge_file(report, "files.certificate", f"{where}.cert_file", tls.cert_file, "our certificate")


def _misfit(report: Report, where: str, error: Exception) -> None:
    text = str(error)
    mismatch = "KEY_VALUES_MISMATCH" in text or "key values mismatch" in text
    report.fail(
        "files.certificate", where, "the key is not that of the certificate" if mismatch else text,
        why=text if mismatch else "", do="Name a certificate and its key, both PEM, that the service may read.",
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------- system


def files_needed(config: Config) -> int:
    """Files and connections that the process may have open at once, by its limits."""
    brokers = sum(2 + broker.consume_connections for broker in config.brokers.values())
    embedded = config.embedded.connections if config.embedded.enabled else 0
    callers = config.http.connections if config.role != "worker" else 0
    fronts = sum(front.connections for front in config.fronts.values()) if config.role != "worker" else 0
    return callers + brokers + embedded + fronts + config.outbound.requests + SPARE_FILES


def _open_files(report: Report, config: Config) -> None:
    try:
        import resource  # not on every platform
    except ImportError:
        return
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the gateway raises the soft one to it
    needed, where = files_needed(config), "open files (ulimit -n)"
    if limit == resource.RLIM_INFINITY or limit >= needed:
        report.ok(
            "system.files", where, "no limit" if limit == resource.RLIM_INFINITY else f"{limit}; {needed} at most"
        )
        return
    report.warn(
        "system.files", where, f"the limit is {limit}, and the settings allow for {needed} at once",
        why="Beyond it no connection is taken or made. It is the limit of this shell; a service has its own.",
        do=f"Set LimitNOFILE={max(needed, 65_536)} in the unit, or raise ulimit -Hn.",
    )  # fmt: skip


def _zone(report: Report) -> None:
    name, year = os.environ.get("TZ", ""), clock.utc().year
    if year < YEAR_MIN:
        report.fail("system.zone", "clock", f"it says the year {year}", do="Set the clock, by NTP.")
        return
    zone = name.removeprefix(":")
    if zone and not zone.startswith("/"):
        try:
            zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            if any(Path(each).exists() for each in ZONES) and not any(c.isdigit() for c in zone):
                report.warn(
                    "system.zone", f"TZ={name}", "there is no such time zone",
                    why="The system takes it for UTC. The gateway itself speaks UTC everywhere.",
                    do="Correct TZ, or take it away.",
                )  # fmt: skip
                return
    report.ok("system.zone", "clock", f"{time.tzname[0]} here; logs, API and ledger speak UTC")
