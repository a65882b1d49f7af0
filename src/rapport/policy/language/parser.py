"""From policy text to its tree. All faults are found at once: a faulty line is noted and skipped.
[PO-3]"""

from __future__ import annotations

from rapport.core.errors import PolicyError
from rapport.policy.language.conditions import parse_condition
from rapport.policy.language.cursor import SyntaxFault
from rapport.policy.language.definitions import parse_definitions
from rapport.policy.language.faults import Diagnostics
from rapport.policy.language.options import Options
from rapport.policy.language.sections import split_sections
from rapport.policy.language.tokens import Token, tokenize_line
from rapport.policy.language.tree import And, Expression, PolicyTree

MAX_BYTES = 64 * 1024


def parse_policy(text: str, *, name: str) -> PolicyTree:
    """The tree of a policy; raises PolicyError with every fault found.

    Takes time linear in the text; a text above 64 KiB or nested deeper than 50 is refused.
    """
    faults = Diagnostics(name, text)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        faults = Diagnostics(name, "")
        faults.add(
            "policy.too_large", "a policy is at most 64 KiB long", hint="split it into several"
        )
        raise PolicyError(faults.problems())
    sections = split_sections(text, faults)
    concepts = parse_definitions(sections.concepts, faults)
    options = Options()
    aliases = frozenset(concept.alias for concept in concepts)
    parts = _conditions(sections.conditions, aliases, options, faults)
    if not parts and not faults.has_errors():
        place = sections.conditions[0][0].place
        hint = "add a line such as: A is inside R"
        faults.add("policy.no_condition", "the policy has no condition", place, hint=hint)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    return PolicyTree(
        name=name,
        concepts=concepts,
        condition=parts[0] if len(parts) == 1 else And(tuple(parts)),
        actions=tuple(sections.actions),
        window_ms=options.window_ms,
        consumption=options.consumption,
        distinct=tuple(options.distinct),
        when_unsure=options.when_unsure,
        once_per_ms=options.once_per_ms,
    )


def parse_expression(text: str) -> Expression:
    """The expression of one condition line, without a policy around it; raises PolicyError."""
    faults = Diagnostics("condition", text)
    tokens = tokenize_line(text, 1, faults)
    if not tokens:
        faults.add("policy.no_condition", "there is no condition", hint="such as: A is inside R")
    parts = _conditions([tokens] if tokens else [], frozenset(), Options(), faults)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    return parts[0]


def _conditions(
    lines: list[list[Token]], aliases: frozenset[str], options: Options, faults: Diagnostics
) -> list[Expression]:
    parts: list[Expression] = []
    for line in lines:
        try:
            if not options.read(line, aliases):
                parts.append(parse_condition(line, aliases))
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return parts
