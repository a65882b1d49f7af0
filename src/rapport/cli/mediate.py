"""`rapport mediate`: how sources are given their meaning, and what is held back. [ME-8, ME-11]"""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_bytes, write_json, write_table
from rapport.core.errors import UnknownName
from rapport.core.times import format_time

app = App(name="mediate", help="Look at interpretations and what is held back.")


@app.command
def show(source: str, *, site: SiteOption = None) -> None:
    """Print the generated code that gives the events of a source their meaning."""
    from rapport.mediation.declare import interpretations_from_site
    from rapport.mediation.transformer import Transformer
    from rapport.site.bindings import source_bindings
    from rapport.site.site import load_site

    loaded = load_site(site_directory(site), policies=[])
    bindings = source_bindings(loaded.ontology)
    if source not in bindings:
        raise UnknownName("source", source, list(bindings))
    found, _problems = interpretations_from_site(
        loaded.file, loaded.directory, loaded.tables.columns()
    )
    name = bindings[source].interpretation
    if name and name not in found:
        raise UnknownName("interpretation", name, list(found))
    interpretation = found[name] if name else None
    transformer = Transformer.build(interpretation, bindings[source], lookups=loaded.tables)
    write_bytes(transformer.source_text().encode())


@app.command
def quarantine(
    *,
    site: SiteOption = None,
    limit: Annotated[int, Parameter(help="At most this many, newest last.")] = 100,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """List readings that are held back, with the reason and what to do."""
    from rapport.channel.backends.readonly import ReadOnlyChannels
    from rapport.cli.local import read_channels

    async def rows(channels: ReadOnlyChannels) -> list[dict[str, Any]]:
        held = channels.channel("quarantine")
        after = max(held.last_position() - limit, 0)
        stored = await held.read_after(after, limit=limit)
        return [
            {"received": item.received, "id": item.event.id, **item.event.payload()}
            for item in stored
        ]

    found = read_channels(site_directory(site), rows)
    if json:
        write_json(found)
        return
    columns = ("received", "source", "reason", "message", "hint")
    write_table(
        "held back",
        columns,
        [
            (format_time(row["received"]), *(str(row.get(name, "")) for name in columns[1:]))
            for row in found
        ],
    )
