"""What the compiler's stages hand on: a draft of the policy that gains one part per stage. [PO-4,
PO-5]"""

from __future__ import annotations

import msgspec

from rapport.policy.compiler.atoms import Ecnf
from rapport.policy.compiler.logic_tree import LogicTree
from rapport.policy.compiler.scope import Scope
from rapport.policy.language.tree import Atomic, Expression, PolicyTree, SourceSpan
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint, Plan


class TermRewrite(msgspec.Struct, frozen=True):
    """Something a policy says in an interpretation's terms and what it is in root, for people."""

    written: str
    root: str
    place: SourceSpan


class CompilerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A policy on its way to a plan."""

    tree: PolicyTree
    ontology: Ontology
    window_ms: int
    condition: Expression
    """As written at first; after the check with the names as declared and numbers in root's
    units."""
    constraints: dict[str, tuple[Constraint, ...]] = {}
    """Of each alias, after the check; those of its kind included."""
    stated: dict[str, Atomic] = {}
    """Comparisons, durations and silences by their text in the normal form, after the check."""
    ecnf: Ecnf = ()
    logic_tree: LogicTree | None = None
    plan: Plan | None = None
    rewritten: tuple[TermRewrite, ...] = ()
    """What was said in an interpretation's own terms."""

    @property
    def scope(self) -> Scope:
        """What the policy's names stand for."""
        return Scope(self.tree.concepts, self.ontology)

    @property
    def own_window_ms(self) -> int:
        """The policy's window, or else the site's."""
        return self.tree.window_ms or self.window_ms
