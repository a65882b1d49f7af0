"""What moving a log to and from PostgreSQL needs: see MovableLogStore. [CH-13]"""

from __future__ import annotations

from rapport.store.postgres.connections import Link

_SKIP = """
UPDATE logs SET last = %(last)s, first = CASE WHEN last < first THEN %(last)s + 1 ELSE first END
WHERE number = %(log)s AND last < %(last)s
"""


def skip_to(link: Link, log: int, position: int) -> None:
    """Makes `position` the next one, if it lies after the next; nothing stands between."""
    link.execute(_SKIP, {"log": log, "last": position - 1})


def forget_log(link: Link, log: int) -> None:
    """Deletes a log whose events have been let go of, and whatever was appended since."""
    with link.transaction():
        link.execute("DELETE FROM events WHERE log = %s", (log,))
        link.execute("DELETE FROM logs WHERE number = %s", (log,))
