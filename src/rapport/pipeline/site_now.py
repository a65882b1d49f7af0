"""A site that people edit while jobs run: a half-written file stops none of them. [PI-12]"""

from __future__ import annotations

from rapport.core.errors import RapportError
from rapport.kernel.telemetry import get_logger
from rapport.site.site import Site, load_site

_log = get_logger(__name__)


class SiteNow:
    """A site as its files are; as they were last well-formed while they are not."""

    def __init__(self, site: Site) -> None:
        self._site, self._told = site, ""

    def site(self) -> Site:
        """The site now; a fault is told once."""
        try:
            self._site, self._told = load_site(self._site.directory), ""
        except RapportError as error:
            if error.message != self._told:
                self._told = error.message
                _log.warning("the site cannot be read; it is taken as it was", reason=self._told)
        return self._site
