"""`rapport ontology` and `rapport tables`: concepts of a site, their exchange with other tools, and
the freshness of tables. [PO-1, PO-2]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, SiteOption, site_directory
from rapport.cli.hints import read_given, wrong_use
from rapport.cli.node_api import HERE, Where
from rapport.cli.output import (
    print_note,
    show_problems,
    write_json,
    write_result,
    write_table,
)
from rapport.core.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from rapport.policy.ontology import Ontology

app = App(name="ontology", help="Look at what a site speaks of; exchange it with other tools.")

OutOption = Annotated[Path | None, Parameter(name="--out", help="File to write to, not stdout.")]
Format = Literal["turtle", "rdfxml"]

_CONCEPTS = ("concept", "attribute", "type", "unit", "from")
_RELATIONSHIPS = ("relationship", "first", "second", "function")


@app.command
def show(
    *,
    site: SiteOption = None,
    svg: Annotated[bool, Parameter(help="Draw it.", negative="")] = False,
    out: OutOption = None,
) -> int:
    """Show concepts, attributes and where they come from, relationships and functions."""
    from rapport.policy import ontology_view as view

    ontology, given, problems = _loaded(site)
    if svg:
        title = f"Ontology of {site_directory(site).resolve().name}"
        write_result(view.draw_ontology(ontology, given, title=title).encode(), out)
    elif out is not None:
        raise wrong_use("--out is for --svg", "add --svg")
    else:
        write_table("concepts", _CONCEPTS, view.concept_rows(ontology, given))
        kinds = view.kind_rows(ontology)
        if kinds:
            write_table("kinds and groups", ("name", "what", "which"), kinds)
        write_table("relationships", _RELATIONSHIPS, view.relationship_rows(ontology))
        functions = view.function_rows(ontology)
        if functions:
            write_table("functions", ("function", "of", "found by", "unit"), functions)
    return int(show_problems(problems))


@app.command
def check(
    *, site: SiteOption = None, json: Annotated[bool, Parameter(help="Problems as JSON.")] = False
) -> int:
    """Find every mistake in the ontology alone; exits 1 when there is an error."""
    _ontology, _given, problems = _loaded(site)
    if not json:
        code = int(show_problems(problems))
        print_note("no problems found" if not problems else f"{len(problems)} found")
        return code
    write_json(problems)
    return int(any(problem.severity == "error" for problem in problems))


@app.command
def export(
    *,
    site: SiteOption = None,
    format: Annotated[Format, Parameter(help="How to write it.")] = "turtle",
    base: Annotated[str, Parameter(help="What the names of its things begin with.")] = "",
    out: OutOption = None,
) -> int:
    """Write the ontology as OWL; what does not fit is named on stderr."""
    from rapport.policy.rdf import DEFAULT_BASE, to_graph, write_graph

    base = base or DEFAULT_BASE
    if not base.endswith(("#", "/", ":")) or any(c in base for c in '<>"{}|^`\\ \t\r\n'):
        hint = f"such as http://example.org/site# or {DEFAULT_BASE}"
        raise InvalidInput(f"{base!r} cannot begin a name", code="rdf.bad_base", hint=hint)
    ontology, _given, problems = _loaded(site)
    graph, left_out = to_graph(ontology, base)
    write_result(write_graph(graph, format, base=base).encode(), out)
    _print_notes("not in the file", left_out)
    return int(show_problems(problems))


@app.command(name="import")
def import_ontology(file: Path, *, out: OutOption = None) -> None:
    """Turn an OWL ontology (.ttl, .nt, .rdf, .owl, .xml) into tables for site.toml, to be edited;
    what does not fit is named on stderr."""
    from rapport.policy.rdf import from_graph, read_rdfxml, read_turtle, site_text

    raw = read_given(file)
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<?xml", b"<rdf:", b"<!DOCTYPE", b"<!--")):
        graph = read_rdfxml(raw)
    else:
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            message, hint = f"{file.name} is not UTF-8 text", "save it as UTF-8"
            raise InvalidInput(message, code="rdf.bad_turtle", hint=hint) from None
        graph = read_turtle(text, name=file.name)
    found = from_graph(graph)
    write_result(site_text(found).encode(), out)
    _print_notes("did not fit", found.notes)


def _loaded(site: Path | None) -> tuple[Ontology, set[tuple[str, str]], list[Problem]]:
    """The sound part of the ontology, what tables give, and everything wrong with it."""
    from rapport.kernel.toml import TomlFile
    from rapport.policy.config.loader import ontology_from_site
    from rapport.site.site import SITE_FILE
    from rapport.tables.config import tables_from_site

    directory = site_directory(site)
    file = TomlFile.load(directory / SITE_FILE, name=SITE_FILE)
    ontology, problems = ontology_from_site(file)
    tables, _ = tables_from_site(file, directory, ontology.concepts)
    given = {(table.concept, attribute) for table in tables for attribute in table.columns}
    return ontology, given, problems


def _print_notes(what: str, texts: list[str]) -> None:
    for text in texts:
        print_note(f"{what}: {text}")


tables_app = App(
    name="tables", help="Tables of a running node: how fresh they are, asking a source now."
)


@tables_app.command(name="list")
def list_tables(*, where: Where = HERE, json: JsonOption = False) -> None:
    """List tables with rows, age, and why a source failed."""
    found = where.remote().get("/tables")
    if json:
        write_json(found)
        return
    columns = ["table", "rows", "lifetime", "age", "changes", "failures", "error"]
    write_table("tables", columns, [_row(one) for one in found])


@tables_app.command
def refresh(table: str, *, where: Where = HERE) -> None:
    """Ask the source of a table now."""
    done = where.remote().post(f"/tables/{quote(table, safe='')}/refresh", b"{}")
    write_json(done)
    print_note("its rows changed" if done["changed"] else "its rows are the same")


def _row(one: dict[str, Any]) -> list[str]:
    error = one["error"]
    return [
        one["table"],
        str(one["rows"]),
        _seconds(one["lifetime_ms"]) if one["lifetime_ms"] else "read once",
        _seconds(one["age_ms"]),
        str(one["changes"]),
        str(one["failures"]),
        f"{error['code']}: {error['message']}" if error else "",
    ]


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1_000:g} s"
