"""The meanings that a site's files declare. [ME-14, PI-4]"""

from __future__ import annotations

from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.pipeline.mediating.meanings import Meanings, SentTables
from rapport.site.interpretations import source_bindings
from rapport.site.recordings import meanings_in_files
from rapport.site.site import Site


def meanings_of_site(site: Site, *, in_force: ActiveInterpretations | None = None) -> Meanings:
    """What the site's files say, or other interpretations that are `in_force`."""
    loaded = site.tables.loaded()
    keys = {}
    for name, table in loaded.items():
        declared = table.declared
        parts = [table.lookup.column(each) for each in (declared.key, *declared.further_keys)]
        joined = ("/".join(row) for row in zip(*parts, strict=True))
        keys[name] = tuple(dict.fromkeys(joined))
    return Meanings(
        in_force=in_force or meanings_in_files(site),
        bindings=source_bindings(site.ontology, site.file),
        ontology=site.ontology,
        tables=SentTables({name: table.lookup for name, table in loaded.items()}, keys),
        paths=(str(site.directory.resolve()),),
    )
