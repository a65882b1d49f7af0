"""The `[[routing]]` tables of a site file, faults in place. [CO-6, UX-2]

```toml
[[routing]]
type = "TASK"                 # empty or absent = any; at least one of the four is set
sender = "peer:ana"
to = ["collective:watchers"]  # peers, collectives, components
```
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rapport.communication.services.routing import RoutingRule, named
from rapport.core.errors import InvalidInput, Problem
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.toml import Section, TomlFile

_KEYS = ("id", "type", "subtype", "receiver", "sender", "to")
_PLACE = {"routing.no_recipient": "to", "routing.too_many": "to"}


def routing_from_site(
    file: TomlFile, *, peers: Collection[str], collectives: Collection[str]
) -> tuple[tuple[RoutingRule, ...], list[Problem]]:
    """The rules that `[[routing]]` says, and all their problems; never raises for a wrong site.

    A peer or collective that the site does not declare is a warning: it may be added at run time.
    """
    problems: list[Problem] = []
    known = {"peer": peers, "collective": collectives}
    rules: dict[str, RoutingRule] = {}
    for table in _tables(file, problems):
        rule = _rule(table, known)
        if rule is not None and rules.setdefault(rule.id, rule) is not rule:
            message = f"another rule has the id {rule.id!r}" if table.has("id") else "it says twice"
            table.fault("id", "routing.id_taken", message, hint="leave one of them out")
    return tuple(rules.values()), problems


def _tables(file: TomlFile, problems: list[Problem]) -> Iterator[Fields]:
    given = file.values.get("routing", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        message = "routing is not a list of tables"
        problems.append(
            file.problem(("routing",), "site.not_a_table", message, hint="write [[routing]]")
        )
        return
    for at, entry in enumerate(given):
        section = Section(file, ("routing", f"[{at}]"), entry)
        yield Fields(section, problems, known=_KEYS, strict=True)


def _rule(table: Fields, known: dict[str, Collection[str]]) -> RoutingRule | None:
    before = len(table.problems)
    recipients = [_who(table, "to", text, known) for text in table.texts("to", ())]
    rule = RoutingRule(
        id=table.text("id", ""),
        type=table.text("type", ""),
        subtype=table.text("subtype", ""),
        receiver=_whom(table, "receiver", known),
        sender=_whom(table, "sender", known),
        to=tuple(each for each in recipients if each is not None),
    )
    if any(problem.severity == "error" for problem in table.problems[before:]):
        return None
    try:
        return named(rule)
    except InvalidInput as error:
        table.report(_PLACE.get(error.code, ""), error)
        return None


def _whom(table: Fields, key: str, known: dict[str, Collection[str]]) -> Identifier | None:
    text = table.text(key, "")
    return _who(table, key, text, known) if text else None


def _who(
    table: Fields, key: str, text: str, known: dict[str, Collection[str]]
) -> Identifier | None:
    try:
        found = Identifier.parse(text)
    except InvalidInput as error:
        table.report(key, error)
        return None
    declared = known.get(found.kind)
    if declared is not None and found.name not in declared:
        table.fault(
            key,
            "routing.unknown_name",
            f"the site declares no {found.kind} {found.name!r}",
            hint=suggest(found.name, declared),
            severity="warning",
        )
    return found
