"""How a command ends: one table of exit statuses, and which error ends with which.

The verbs of ``gateway`` and the jobs of ``python -m gateway.pipeline`` share it, so that a scheduler can tell what to
do next without reading a log.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway import errors

(
    DONE, FAILED, USAGE, NOT_FOUND, REFUSED, UNREACHABLE, PARTLY_DONE, DIFFERENT, MISSING, DAMAGED, FULL,
) = range(11)  # fmt: skip
EXIT_STATUS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed",
    USAGE: "wrong usage, or a wrong setting",
    NOT_FOUND: "not found",
    REFUSED: "refused",
    UNREACHABLE: "unreachable",
    PARTLY_DONE: "partly done",
    DIFFERENT: "both sides of a comparison differ",
    MISSING: "something that it needs is not installed, or too old",
    DAMAGED: "stored rows are gone, damaged or of a newer release",
    FULL: "no room left on the disk",
}
"""What each exit status means."""

EXIT_OF_ERROR: Mapping[type[errors.GatewayError], int] = {
    errors.ConfigurationError: USAGE,
    errors.LocalError: REFUSED,
    errors.EncodeError: USAGE,
    errors.NotFound: NOT_FOUND,
    errors.RemoteError: REFUSED,
    errors.Unroutable: REFUSED,
    errors.PublishRefused: REFUSED,
    errors.LimitExceeded: REFUSED,
    errors.AuthenticationFailed: REFUSED,
    errors.CertificateRefused: REFUSED,
    errors.BrokerUnavailable: UNREACHABLE,
    errors.LedgerDamaged: DAMAGED,
    errors.LedgerUnavailable: UNREACHABLE,
    errors.BudgetExceeded: UNREACHABLE,
    errors.Overloaded: UNREACHABLE,
    errors.NoSuchResource: NOT_FOUND,
    errors.ReloadRefused: REFUSED,
    errors.CursorOwned: REFUSED,
    errors.JavaMissing: MISSING,
    errors.SparkMissing: MISSING,
    errors.ServiceUnreachable: UNREACHABLE,
    errors.ServiceRefused: REFUSED,
    errors.BadFilter: USAGE,
    errors.SourceGone: DAMAGED,
    errors.ArchiveTooNew: DAMAGED,
    errors.ArchiveDamaged: DAMAGED,
    errors.FingerprintDiffers: REFUSED,
    errors.DiskFull: FULL,
    errors.Breaks: DIFFERENT,
    errors.BackupRefused: REFUSED,
}
"""The exit status of an error, by the nearest class; FAILED for the rest."""


def exit_status(kind: type[errors.GatewayError]) -> int:
    """The exit status of a class of errors."""
    return next((EXIT_OF_ERROR[cls] for cls in kind.__mro__ if cls in EXIT_OF_ERROR), FAILED)
