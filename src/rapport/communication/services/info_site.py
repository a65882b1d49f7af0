"""The `[messages.TYPE]` tables of a site file, faults in place. [CO-14, UX-2]

```toml
[messages.TASK.REQUEST]           # or [messages.TASK] for every subtype that has no table
text = "Please check a machine."
schema = "schemas/task.json"      # a file in the site's directory, or a table
answers = [{ type = "TASK", subtype = "DONE", text = "when it is done" }]
related = [{ type = "TASK", subtype = "CANCEL" }]
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.services.info import (
    Kind,
    MessageInformation,
    RelatedMessage,
    check_information,
)
from rapport.communication.services.info_schema import LARGEST_SCHEMA_BYTES
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.toml import Section, TomlFile

_KEYS = ("text", "schema", "answers", "related")
_RELATED_KEYS = ("type", "subtype", "text")
_EXAMPLE = '[{ type = "TASK", subtype = "DONE", text = "when it is done" }]'


def info_from_site(
    file: TomlFile, directory: Path
) -> tuple[dict[Kind, MessageInformation], list[Problem]]:
    """What `[messages]` tells of messages, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    found: dict[Kind, MessageInformation] = {}
    section = file.section("messages")
    for key, value in section.values.items():
        if not isinstance(value, dict):
            message, hint = f"messages.{key} is not a table", f"write [messages.{key}]"
            problems.append(section.problem(key, "site.not_a_table", message, hint=hint))
    if not isinstance(file.values.get("messages", {}), dict):
        message = "messages is not a table"
        problems.append(
            file.problem(("messages",), "site.not_a_table", message, hint="write [messages.TYPE]")
        )
    for type, table in section.sections():
        subtypes = [(name, below) for name, below in table.sections() if name not in _KEYS]
        own = {key: value for key, value in table.values.items() if key not in dict(subtypes)}
        if own or not subtypes:
            _take(found, (type, ""), Section(file, table.path, own), directory, problems)
        for subtype, below in subtypes:
            _take(found, (type, subtype), below, directory, problems)
    return found, problems


def _take(
    found: dict[Kind, MessageInformation],
    kind: Kind,
    section: Section,
    directory: Path,
    problems: list[Problem],
) -> None:
    before = len(problems)
    fields = Fields(section, problems, known=_KEYS, strict=True)
    information = MessageInformation(
        text=fields.filled_text("text", example='"What it means and how to answer it."'),
        schema=_schema(fields, directory),
        answers=_messages(fields, "answers"),
        related=_messages(fields, "related"),
    )
    if any(problem.severity == "error" for problem in problems[before:]):
        return
    try:
        check_information(*kind, information)
    except InvalidInput as error:
        fields.report("schema" if error.code == "info.bad_schema" else "", error)
        return
    found[kind] = information


def _messages(fields: Fields, key: str) -> tuple[RelatedMessage, ...]:
    return tuple(
        RelatedMessage(
            type=entry.filled_text("type", example='"TASK"'),
            subtype=entry.text("subtype", ""),
            text=entry.text("text", ""),
        )
        for entry in fields.entries(key, _RELATED_KEYS, _EXAMPLE)
    )


def _schema(fields: Fields, directory: Path) -> dict[str, Any]:
    given = fields.section.values.get("schema", {})
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        fields.wrong("schema", "a table or the name of a file", 'schema = "schemas/task.json"')
        return {}
    path = directory / given
    if not is_inside(path, directory) or not is_file(path):
        message = f"there is no file {given!r} in the site's directory"
        fields.fault("schema", "site.no_file", message)
        return {}
    return _schema_in(path, fields)


def _schema_in(path: Path, fields: Fields) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            read = msgspec.json.decode(file.read(LARGEST_SCHEMA_BYTES + 1))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fields.fault("schema", "info.bad_schema", f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(read, dict):
        fields.fault("schema", "info.bad_schema", f"{path.name} is not a JSON object")
        return {}
    return read
