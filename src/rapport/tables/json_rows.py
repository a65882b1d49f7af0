"""Rows from a JSON document: the objects of a list, nested values by dotted names. [PO-2]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.core.errors import SiteError
from rapport.tables.row_file import LooseRows, check_size, refused, rows_digest

_MOST_NESTED = 8
_MOST_COLUMNS = 1_000


def rows_of_json(data: bytes, path: str, fields: Sequence[str], *, name: str) -> LooseRows:
    """The rows of the list at `path` (`data.items`; empty: the document is the list).

    `{"position": {"x": 1}, "tags": ["a"]}` has the columns `position.x` and `tags.0`. Raises
    SiteError. A list of a million objects takes some seconds.
    """
    items = _list_at(_decoded(data, name), path, name)
    check_size(name, len(items))
    header: dict[str, None] = dict.fromkeys(() if items else fields)
    flat: list[dict[str, str]] = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            message = f"row {number} is {_kind(item)}, not an object"
            raise refused(name, "tables.bad_json", message, 'rows are written as {"id": ...}')
        row: dict[str, str] = {}
        _flatten("", item, row, _MOST_NESTED)
        header |= dict.fromkeys(row)
        flat.append(row)
        if len(header) > _MOST_COLUMNS:
            message = f"the rows have more than {_MOST_COLUMNS} different fields"
            raise refused(name, "tables.bad_json", message, "does 'rows' name the right list?")
    names = list(header)
    rows = [[row.get(column, "") for column in names] for row in flat]
    return LooseRows(name, names, rows, rows_digest(names, rows))


def _decoded(data: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        line = 0
        shown = str(error)[:200]
        hint = "is it the right address? it must answer with JSON"
        raise refused(name, "tables.bad_json", f"not JSON: {shown}", hint, line=line) from None


def _list_at(document: Any, path: str, name: str) -> list[Any]:
    found = document
    walked: list[str] = []
    for part in filter(None, path.split(".")):
        if not isinstance(found, dict) or part not in found:
            raise _no_list(name, found, walked, part)
        found = found[part]
        walked.append(part)
    if not isinstance(found, list):
        shown = f"{'.'.join(walked)!r} is" if walked else "the document is"
        hint = f"name the list: rows = {_example(found, walked)!r}"
        raise refused(name, "tables.bad_json", f"{shown} {_kind(found)}, not a list", hint)
    return found


def _no_list(name: str, found: Any, walked: list[str], part: str) -> SiteError:
    place = f" in {'.'.join(walked)!r}" if walked else ""
    known = ", ".join(list(found)[:8]) if isinstance(found, dict) else ""
    hint = f"there is: {known}" if known else f"there is {_kind(found)}"
    return refused(name, "tables.bad_json", f"there is no {part!r}{place}", hint)


def _example(found: Any, walked: list[str]) -> str:
    lists = (
        [key for key, value in found.items() if isinstance(value, list)]
        if found and isinstance(found, dict)
        else []
    )
    return ".".join([*walked, lists[0] if lists else "items"])


def _flatten(prefix: str, value: Any, row: dict[str, str], levels: int) -> None:
    """Fills `row`; what lies deeper than the levels is left out."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = {str(place): item for place, item in enumerate(value)}.items()
    else:
        row[prefix] = _field(value)
        return
    for key, item in inner if levels else ():
        _flatten(f"{prefix}.{key}" if prefix else key, item, row, levels - 1)


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth", type(None): "null"}
    return names.get(type(value), "a number")
