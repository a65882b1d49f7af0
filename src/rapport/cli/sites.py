"""Finding the site a command works on: `--site`, else RAPPORT_SITE, else the current directory.
[UX-2, UX-4]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

SiteOption = Annotated[Path | None, Parameter(name="--site", help="The site directory.")]


def site_directory(given: Path | None) -> Path:
    """The directory of the site file; whether it is one is for the loader to say."""
    return given or Path(os.environ.get("RAPPORT_SITE", "."))
