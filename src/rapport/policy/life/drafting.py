"""Changes before they have a place: what files say, what an ontology broke or mended; and changes
as the engine sees them. Pure. [PO-9]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from rapport.core.errors import Problem
from rapport.policy.compiler.compile import Compiled
from rapport.policy.engine.places import PlanChange
from rapport.policy.life.changes import BY_FILES, ChangeKind, RecordedChange
from rapport.policy.life.compiled import CompiledTexts
from rapport.policy.life.registry import PolicyEntry, PolicyRegistry

BY_MEANING = "ontology of the site"


class DraftChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that has no place and no number yet."""

    what: ChangeKind
    name: str
    text: str = ""
    version: str = ""
    actions: tuple[str, ...] = ()
    by: str = ""
    is_from_file: bool = False
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def of(what: ChangeKind, name: str, text: str, compiled: Compiled, *, by: str) -> DraftChange:
        """One that brings a version."""
        plan = compiled.plan
        return DraftChange(
            what=what, name=name, text=text, version=plan.version(), actions=plan.actions, by=by
        )


def drafts_of_files(
    registry: PolicyRegistry,
    files: Mapping[str, str],
    unread: Collection[str],
    texts: CompiledTexts,
) -> list[DraftChange]:
    """What files say otherwise than before; a file that does not compile brings a broken policy."""
    found: list[DraftChange] = []
    for what, name, text in registry.from_files(files, unread):
        draft = DraftChange(what=what, name=name, text=text, by=BY_FILES, is_from_file=True)
        problems = texts.problems(name, text) if text or what != "deleted" else ()
        if problems:
            draft = msgspec.structs.replace(draft, problems=problems)
        elif what != "deleted":
            plan = texts.get(name, text).plan
            draft = msgspec.structs.replace(draft, version=plan.version(), actions=plan.actions)
        found.append(draft)
    return found


def drafts_of_ontology(
    registry: PolicyRegistry, but: Collection[str], texts: CompiledTexts
) -> list[DraftChange]:
    """What became of policies whose text did not change: broken, mended, or another plan."""
    found: list[DraftChange] = []
    for entry in registry.alive():
        if entry.name in but:
            continue
        problems = texts.problems(entry.name, entry.text)
        if problems and problems != entry.problems:
            draft = DraftChange(what="broken", name=entry.name, by=BY_MEANING, problems=problems)
            found.append(draft)
        elif not problems and _is_other(entry, texts):
            compiled = texts.get(entry.name, entry.text)
            draft = DraftChange.of("rebuilt", entry.name, "", compiled, by=BY_MEANING)
            found.append(draft)
        elif entry.shadow_text and _is_other_shadow(entry, texts):
            found.append(DraftChange(what="dropped", name=entry.name, by=BY_MEANING))
    return found


def _is_other(entry: PolicyEntry, texts: CompiledTexts) -> bool:
    version = texts.get(entry.name, entry.text).plan.version()
    return version != entry.version or bool(entry.problems)


def _is_other_shadow(entry: PolicyEntry, texts: CompiledTexts) -> bool:
    return texts.plan(entry.name, entry.shadow_text, entry.shadow_version) is None


def plan_change(
    kept: RecordedChange, entry: PolicyEntry | None, texts: CompiledTexts
) -> PlanChange:
    """What a change means to the engine, given the policy after it. Where a text does not compile
    (any longer) the policy does not run.
    """
    changed = kept.changed
    change = PlanChange(
        place=changed.place, position=kept.position, act="withdraw", policy=changed.name
    )
    if entry is None:  # of a policy that never was
        return change
    if changed.what == "dropped":
        return msgspec.structs.replace(change, act="drop")
    if changed.what == "shadowed":
        beside = texts.plan(entry.name, entry.shadow_text, entry.shadow_version)
        return msgspec.structs.replace(change, act="shadow" if beside else "drop", plan=beside)
    if entry.state != "running":
        return change
    plan = texts.plan(entry.name, entry.text, entry.version)
    if plan is None:
        return change
    act = "promote" if changed.what == "promoted" else "deploy"
    return msgspec.structs.replace(change, act=act, plan=plan)
