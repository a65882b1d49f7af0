"""What files and the first so many changes came to, kept so that a start need not check them again.
[ME-6, ME-12]

Believed only for exactly these changes, these files and this version of the program; in any other
case everything is put together anew. The log stays the one truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport import __version__
from rapport.core.errors import Problem
from rapport.core.ids import content_id
from rapport.kernel.telemetry import get_logger
from rapport.mediation.changing.keeping import Kept, KeptChange
from rapport.mediation.changing.standing import Outcome, Standing, Together, put_together
from rapport.mediation.from_files import FromFiles
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.model.interpretations import Held, Interpretations
from rapport.mediation.model.replacement import Replacement
from rapport.store.base import RecordStore

TABLE, KEY = "mediation.checkpoint", "interpretations"
EVERY = 50
"""So many changes are checked again at most; fewer are not worth a checkpoint."""
_log = get_logger(__name__)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state after the first `count` changes in their order."""

    grounds: str
    """Digest of what it depends on besides the changes."""
    count: int
    changes: str
    """Digest of their ids in order."""
    roots: tuple[TypedForm, ...]
    replacements: tuple[Replacement, ...]
    held: dict[str, Held]
    formats: dict[str, FormatChoice]
    fields: dict[str, FieldsForm]
    refused: dict[str, tuple[Problem, ...]]
    waiting: tuple[str, ...]
    outcomes: dict[str, Outcome]
    """Of changes that are not simply in force, by id."""


_READ = msgspec.json.Decoder(Checkpoint)
_IN_FORCE = Outcome("in force")


def put_together_from(
    files: FromFiles, kept: Kept, said: Mapping[str, str], records: RecordStore | None
) -> Together:
    """What `put_together` gives. With a checkpoint that fits it costs the checks of every
    interpretation and of the changes since, else those of all changes.
    """
    found = _load(records) if records is not None else None
    changes = kept.changes()
    since_files = kept.since_files(said)
    if found is None or not _fits(found, files, changes, since_files):
        return put_together(files, kept, said)
    _, problems = Standing.from_files(files)
    standing = _standing(found, files)
    outcomes = {one.id: found.outcomes.get(one.id, _IN_FORCE) for one in changes[: found.count]}
    for change in changes[found.count :]:
        standing, outcomes[change.id] = standing.after(change, since_files)
    return Together(standing, outcomes, problems)


def keep_checkpoint(records: RecordStore, together: Together, kept: Kept) -> int:
    """Writes what there is, if it is read back as it is; gives the number of changes in it."""
    standing, changes = together.standing, kept.changes()
    in_force = standing.in_force
    made = Checkpoint(
        grounds=_grounds(standing.files, kept.since_files(kept.said_before())),
        count=len(changes),
        changes=_digest(one.id for one in changes),
        roots=in_force.typed.roots,
        replacements=in_force.typed.replacements,
        held=dict(in_force.typed.held),
        formats=dict(in_force.formats),
        fields=dict(in_force.fields),
        refused=dict(in_force.refused),
        waiting=standing.waiting,
        outcomes={id: one for id, one in together.outcomes.items() if one != _IN_FORCE},
    )
    written = msgspec.json.encode(made)
    again = _standing(_READ.decode(written), standing.files).in_force
    if again.stamps != in_force.stamps:  # a number that JSON writes otherwise, in a file
        _log.info("no checkpoint of interpretations: they would be read back otherwise")
    else:
        records.put(TABLE, KEY, written)
    return len(changes)


def _load(records: RecordStore) -> Checkpoint | None:
    """None when there is none that this version can read: it is made again."""
    raw = records.get(TABLE, KEY)
    try:
        return _READ.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("checkpoint of interpretations not readable", reason=str(error)[:200])
        return None


def _fits(
    found: Checkpoint,
    files: FromFiles,
    changes: Sequence[KeptChange],
    since_files: Mapping[str, int],
) -> bool:
    same = found.count <= len(changes) and found.changes == _digest(
        one.id for one in changes[: found.count]
    )
    return same and found.grounds == _grounds(files, since_files)


def _standing(found: Checkpoint, files: FromFiles) -> Standing:
    in_force = InForce(
        found.fields,
        Interpretations(found.roots, found.replacements, found.held),
        formats=found.formats,
        concepts=files.concepts,
        refused=found.refused,
    )
    waiting = {name: files.typed[name] for name in found.waiting}
    return Standing(files, in_force, waiting)


def _grounds(files: FromFiles, since_files: Mapping[str, int]) -> str:
    tables = {name: sorted(columns) for name, columns in (files.tables or {}).items()}
    said = (
        *(files.fields, files.typed, files.formats, files.concepts, files.said, files.unread),
        *(sorted(files.functions), tables, files.tables is None, since_files),
    )
    texts = (msgspec.json.encode(each, order="deterministic").decode() for each in said)
    return content_id(__version__, *texts)


def _digest(ids: Iterable[str]) -> str:
    return content_id(*ids)
