"""`rapport policy similar NAME`: which other policies speak of the same things. [PO-12]"""

from __future__ import annotations

from pathlib import Path

from rapport.cli.names import NO_POLICIES, unknown
from rapport.cli.terminal import stderr, write_json, write_table
from rapport.core.errors import InvalidInput
from rapport.policy.lint.policy_set import features, most_similar
from rapport.policy.plan import Plan
from rapport.site.site import load_site

_SHOWN = 6


def show_similar(name: str, site: Path, *, limit: int, as_json: bool) -> None:
    """Prints them with what they have in common; raises UnknownName."""
    if limit < 1:
        raise InvalidInput(
            f"cannot list {limit} policies",
            code="cli.wrong_use",
            hint="--limit is 1 or more; leave it out for 10",
        )
    loaded = load_site(site, refusing_policies=False)
    plans = {each: compiled.plan for each, compiled in loaded.policies.items()}
    if name not in plans:
        raise unknown("policy", name, plans, if_none=NO_POLICIES, code="policy.unknown")
    found = most_similar(name, plans, limit=limit)
    if as_json:
        write_json([{"policy": one.policy, "score": round(one.score, 3)} for one in found])
        return
    rows = [
        (f"{one.score:.0%}", one.policy, _in_common(plans[name], plans[one.policy]))
        for one in found
    ]
    write_table(f"like {name}", ("alike", "policy", "both speak of"), rows)
    if not found:
        stderr().print(f"no other policy speaks of what {name} does")


def _in_common(one: Plan, other: Plan) -> str:
    """Attributes, properties and relationships of both, as features name them."""
    kinds = ("attribute ", "property ", "relation ")
    both = features(one).keys() & features(other).keys()
    shown = [text.removeprefix(kind) for kind in kinds for text in sorted(both) if kind in text]
    return ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")
