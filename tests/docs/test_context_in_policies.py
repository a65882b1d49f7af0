"""docs/how-to/context-in-policies.md: what it declares is sound as it stands. [CX-4, CX-9, PO-2,
PO-10]
"""

from __future__ import annotations

import re
from pathlib import Path

from rapport.communication.config import communication_from_site
from rapport.core.schema import AttributeType
from rapport.kernel.toml import TomlFile
from rapport.site.context import context_from_site
from rapport.tables.config import tables_from_site

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "context-in-policies.md"
BROKER, TABLE, ACTIONS = (
    TomlFile.parse(text.encode(), name="site.toml")
    for text in re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
CONCEPTS: dict[str, dict[str, AttributeType]] = {
    "room": {"status": "text", "warmth": "number", "area": "rectangle"}
}


def test_the_broker_of_the_page_is_sound(tmp_path: Path) -> None:
    (tmp_path / "context-keys.toml").touch()
    declared, problems = context_from_site(BROKER, tmp_path)
    assert [one.code for one in problems] == ["context.open_door"]  # as the page says
    assert declared is not None
    assert declared.rights is not None
    assert declared.broker.search.hop_limit == 64


def test_the_table_of_the_page_is_sound(tmp_path: Path) -> None:
    (tmp_path / "rooms.csv").touch()
    text = TABLE.text + '\n[tables.rooms]\ncsv = "rooms.csv"\nkey = "id"\n'
    file = TomlFile.parse(text.encode(), name="site.toml")
    found, problems = tables_from_site(file, tmp_path, CONCEPTS)
    assert problems == []
    assert (found[0].context, found[0].ids_from) == ("room status", "rooms")


def test_the_actions_of_the_page_are_sound(tmp_path: Path) -> None:
    people, problems = communication_from_site(ACTIONS, tmp_path, adapters=("inbox",))
    assert problems == []
    effects = [action.effect for action in people.actions.values()]
    assert [one.target for one in effects if one is not None] == ["context.wishes"] * 2
