"""Files with secrets: made so that only their owner can read them, and never overwritten. [CH-15,
CH-18]
"""

from __future__ import annotations

import os
from pathlib import Path

from rapport.core.errors import DuplicateName, InvalidInput, StoreUnavailable
from rapport.kernel.paths import sync_path, temporary_path


def write_secret_file(path: Path, secret: bytes) -> None:
    """Makes a file with mode 0600 and its directories with 0700; durable and whole, or not there.

    Raises DuplicateName when there is one already, StoreUnavailable when the disk refuses.
    """
    part = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)  # unlike a rename it refuses to overwrite
        finally:
            part.unlink(missing_ok=True)
        sync_path(path.parent)
    except FileExistsError:
        raise DuplicateName(
            f"there is a file {path} already",
            code="access.file_exists",
            hint="choose another name; a secret in use is not overwritten",
        ) from None
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}", code="store.disk_failed"
        ) from None


def read_secret_file(path: Path) -> bytes:
    """The bytes of a secret file; raises InvalidInput."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"cannot read the secret file {path}: {why}", code="settings.no_secret"
        ) from None
