"""Whatever goes wrong in a job, as one of our errors: no job may end the others. [PI-12]"""

from __future__ import annotations

from rapport.core.errors import RapportError, StoreUnavailable


def fault_of(error: Exception, doing: str) -> RapportError:
    """Ours as it is; what the disk refused and what nobody thought of with what was being done."""
    if isinstance(error, RapportError):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(f"{doing}: {error.strerror or error}", code="pipeline.unavailable")
    return RapportError(f"{doing}: {type(error).__name__}: {error}", code="pipeline.job_failed")
