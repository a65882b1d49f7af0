"""What the compiler's stages hand on: a draft of the policy that gains one part per stage. [PO-4,
PO-5]"""

from __future__ import annotations

import msgspec

from rapport.policy.compiler.logic_tree import LogicTree
from rapport.policy.compiler.normalize import Ecnf
from rapport.policy.language.tree import Expression, Place, PolicyTree
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint, Plan


class Rewritten(msgspec.Struct, frozen=True):
    """Something a policy says in an interpretation's terms and what it is in root, for people."""

    written: str
    root: str
    place: Place


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A policy on its way to a plan."""

    tree: PolicyTree
    ontology: Ontology
    window_ms: int
    condition: Expression
    """As written at first; after the check with the names as declared and parameters in base
    units."""
    constraints: dict[str, tuple[Constraint, ...]] = {}
    """Of each alias, after the check."""
    ecnf: Ecnf = ()
    logic_tree: LogicTree | None = None
    plan: Plan | None = None
    rewritten: tuple[Rewritten, ...] = ()
    """What was said in an interpretation's own terms."""
