"""What the users of the tool do, each on a platform of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from both_ways import Participant, Sent

Words = dict[str, Any]


def participants(step: str) -> list[Participant]:
    """A user on Unix and one on Windows; one with a browser joins. Nobody speaks root."""
    found = [Participant("unix", "unix"), Participant("windows", "windows")]
    return [*found, Participant("browser", "browser")] if step == "joined" else found


def events(step: str, count: int, seed: int) -> Iterator[Sent]:
    """Random events of all users and types."""
    chance = random.Random(seed)
    senders = [each.name for each in participants(step)]
    for _ in range(count):
        sender = chance.choice(senders)
        kind = chance.choice([*KINDS] if step == "added" else [*KINDS][:-1])
        writer = WRITERS[sender](chance, step)
        event = {name: writer.value(what) for name, what in KINDS[kind].items()}
        yield Sent(sender, f"{writer.prefix}{kind}", event)


KINDS: dict[str, dict[str, str]] = {
    "ComponentAdded": {"model": "text", "name": "text", "at": "spot"},
    "ConnectorAdded": {"model": "text", "name": "text", "at": "spot"},
    "Linked": {"model": "text", "source": "spot", "target": "spot"},
    "Renamed": {"old": "text", "new": "text", "at": "spot", "uses": "spots"},
    "Fault": {"message": "text", "at": "spot", "related": "spots"},
    "Generated": {"model": "text", "main": "path", "files": "paths"},
    "Opened": {"user": "text", "view": "view"},
    "Breakpoint": {"at": "spot", "condition": "text"},
}


class Writer:
    """Random values as one platform writes them."""

    prefix = ""

    def __init__(self, chance: random.Random, step: str) -> None:
        self.chance, self.step = chance, step

    def value(self, what: str) -> Any:
        if what == "text":
            return self.chance.choice(("pump", "valve", "bus", "clock"))
        if what.endswith("s"):
            return [self.value(what[:-1]) for _ in range(self.chance.randint(0, 3))]
        return getattr(self, what)()

    def parts(self) -> list[str]:
        """The folders and the file, below the project."""
        folders = self.chance.choices(("src", "model", "gen ui", "core"), k=2)
        return [*folders, f"{self.chance.choice(('Pump', 'Bus'))}.java"]

    def numbers(self) -> tuple[int, int]:
        """A line and a column, each from zero."""
        return self.chance.randint(0, 2_000), self.chance.randint(0, 99)


class Unix(Writer):
    prefix = "Unix"

    def path(self) -> str:
        return "/home/anna/dradel/" + "/".join(self.parts())

    def spot(self) -> Words:
        line, column = self.numbers()
        return {"file": self.path(), "line": line + 1, "column": column}

    def view(self) -> Words:
        first, _ = self.numbers()
        return {"file": self.path(), "first": first + 1, "last": first + 40}


class Windows(Writer):
    prefix = "Win"

    def path(self) -> str:
        return "C:\\Projects\\dradel\\" + "\\".join(self.parts())

    def spot(self) -> Words:
        row, column = self.numbers()
        if self.step == "changed":
            return {"path": self.path(), "start": {"row": row, "column": column}}
        return {"path": self.path(), "row": row, "column": column}

    def view(self) -> Words:
        top, _ = self.numbers()
        return {"path": self.path(), "top": top, "end": top + 39}


class Browser(Writer):
    prefix = "Web"

    def path(self) -> str:
        return "https://dradel.example/" + "/".join(self.parts()).replace(" ", "%20")

    def spot(self) -> str:
        line, column = self.numbers()
        return f"{self.path()}#L{line + 1}C{column}"

    def view(self) -> Words:
        first, _ = self.numbers()
        return {"page": self.path(), "first": first + 1, "last": first + 40}


WRITERS = {"unix": Unix, "windows": Windows, "browser": Browser}
