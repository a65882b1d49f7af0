"""Which node a command speaks to: the options that all such commands have in common. [UX-3]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from rapport.cli.remote import Remote, TokenFileOption, UrlOption
from rapport.cli.sites import SiteOption, site_directory


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """`--site`, `--url` and `--token-file` as they were given."""

    site: SiteOption = None
    url: UrlOption = None
    token_file: TokenFileOption = None

    @property
    def directory(self) -> Path:
        """Of the site."""
        return site_directory(self.site)

    def remote(self) -> Remote:
        """The doors of the node; raises SiteError when the site's settings cannot be read."""
        return Remote.of_site(self.directory, self.url, self.token_file)


HERE = Where()
"""Nothing given: the site of $RAPPORT_SITE or of this directory, and its node."""
