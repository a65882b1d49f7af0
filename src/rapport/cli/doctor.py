"""`rapport doctor`: the capabilities of this installation, and the state of a site's disk, servers,
context broker and ensemble node. [UX-1, UX-3, CH-13, CX-4, EN-10]
"""

from __future__ import annotations

import os

import msgspec

from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.output import write_json, write_table
from rapport.site.doctor import examine_installation, examine_site


def doctor(*, site: SiteOption = None, json: JsonOption = False) -> None:
    """Tell what this installation can do and, with --site, whether a site's disk and servers are
    there.
    """
    found = list(examine_installation())
    if site is not None or "RAPPORT_SITE" in os.environ:
        found += examine_site(site_directory(site))
    if json:
        write_json(found)
        return
    rows = [msgspec.structs.astuple(finding) for finding in found]
    write_table("doctor", ("part", "state", "hint"), rows)
