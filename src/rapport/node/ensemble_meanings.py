"""Interpretations in force as texts that other nodes can take over, and back. [ME-12]

A text is a change in JSON, as the door for changes takes it; the same interpretation gives the same
text wherever it is in force. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.mediation.interpretations.change_log import LoggedChange, change_target
from rapport.mediation.interpretations.change_requests import (
    ChangeRequest,
    DeclareFields,
    read_fields_declaration,
    request_from_json,
)
from rapport.mediation.interpretations.change_state import ChangeOutcome, InterpretationState
from rapport.mediation.interpretations.model import CANONICAL
from rapport.mediation.interpretations.type_changes import Declare

History = Sequence[tuple[LoggedChange, ChangeOutcome]]


class InTexts(msgspec.Struct, frozen=True):
    """What a node has."""

    texts: dict[str, tuple[str, str]]
    """By name the stamp and the text."""
    in_files: frozenset[str]
    """Names that the site's files declare, sound or not."""


def in_texts(
    standing: InterpretationState, history: History, tables: Mapping[str, dict[str, Any]]
) -> InTexts:
    """Everything in force but root. `tables`: what the site's file says of the fields form; such
    an interpretation in another file has no text and is not shared.
    """
    in_force, files = standing.in_force, standing.files
    found: dict[str, ChangeRequest] = {}
    for name in in_force.typed.names:
        if name != CANONICAL:
            own = {name: in_force.formats[name]} if name in in_force.formats else {}
            found[name] = ChangeRequest(changes=(Declare(in_force.typed.named(name)),), formats=own)
    for name, form in in_force.fields.items():
        for said in _said(name, history, tables):
            read, _problems = read_fields_declaration(said)
            if read is not None and read.meaning() == form.meaning():
                found[name] = ChangeRequest(changes=(said,))
                break
    texts = {name: (in_force.stamps[name], text_of(wanted)) for name, wanted in found.items()}
    return InTexts(texts, frozenset((*files.typed, *files.fields, *files.unread)))


def text_of(wanted: ChangeRequest) -> str:
    """The change as it reads after it was read: a number that was written as 5 may then be 5.0."""
    written = msgspec.json.encode(wanted, order="deterministic")
    again = msgspec.json.decode(written, type=ChangeRequest)
    return msgspec.json.encode(again, order="deterministic").decode()


def wanted_by(name: str, text: str) -> ChangeRequest:
    """The change that a text asks for; raises InvalidInput unless it is about that name alone."""
    wanted = request_from_json(text.encode())
    if [change_target(change) for change in wanted.changes] != [name]:
        raise InvalidInput(
            f"what is offered as {name[:60]!r} is about something else",
            code="interpretation.not_as_offered",
        )
    return wanted


def last_change(name: str, history: History) -> LoggedChange | None:
    """The change that says what a name means now; none: a file does, or nobody."""
    for kept, outcome in reversed(history):
        about = [change_target(change) for change in kept.changed.changes]
        if outcome.state == "in force" and name in about:
            return kept
    return None


def _said(
    name: str, history: History, tables: Mapping[str, dict[str, Any]]
) -> Iterable[DeclareFields]:
    """Declarations of the fields form that may be the one in force, the last first."""
    for kept, outcome in reversed(history):
        for change in reversed(kept.changed.changes if outcome.state == "in force" else ()):
            if isinstance(change, DeclareFields) and change.name == name:
                yield change
    if name in tables:
        yield DeclareFields(name, tables[name])
