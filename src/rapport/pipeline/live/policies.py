"""Which policies a live query runs: those that the site lets run on Spark, in the versions that its
node has on record. [PO-8, PO-9]
"""

from __future__ import annotations

from pathlib import Path

from rapport.core.errors import Conflict, SiteError
from rapport.pipeline.live.whole import read_events
from rapport.pipeline.sources.place import Place
from rapport.pipeline.sources.planning import Piece
from rapport.policy.engine.spark_policies import SparkPolicies
from rapport.policy.lifecycle.registry import CHANNEL, PolicyEntry, PolicyRegistry, recorded_change
from rapport.policy.plan import Plan
from rapport.site.interpretations import terms_of_policies
from rapport.site.policies import PolicyFile, compile_text
from rapport.site.site import Site


def plans_on_spark(site: Site, place: Place) -> list[Plan]:
    """Raises Conflict when a version on record cannot be made from what the site says now, and
    SiteError when its text does not compile.
    """
    chosen = SparkPolicies(site.on_spark)
    registry = _registry(place)
    if not registry.entries:  # no node has run yet: what its files say will run
        return [one.plan for name, one in sorted(site.policies.items()) if name in chosen]
    entries = [one for one in registry.alive() if one.state == "running" and one.name in chosen]
    return [_plan(site, entry) for entry in entries]


def _registry(place: Place) -> PolicyRegistry:
    registry = PolicyRegistry()
    with place.opened() as opened:
        span = opened.span(CHANNEL)
    for stored in read_events(place, Piece(CHANNEL, span.first - 1, span.last)):
        kept = recorded_change(stored)
        if kept is not None:
            registry.add(kept)
    return registry


def _plan(site: Site, entry: PolicyEntry) -> Plan:
    known = site.policies.get(entry.name)
    if known is not None and known.plan.version() == entry.version:
        return known.plan
    terms, faults = terms_of_policies(site.file, site.directory, site.ontology, [entry.name])
    file = PolicyFile(entry.name, Path(f"{entry.name}.dpl"), f"{entry.name} (on record)")
    compiled, problems = compile_text(
        file, entry.text, site.ontology, site.window_ms, terms.terms.get(entry.name)
    )
    if compiled is None:
        raise SiteError([one for one in (*faults, *problems) if one.severity == "error"])
    if compiled.plan.version() != entry.version:
        raise Conflict(
            f"policy {entry.name!r} is version {entry.version} in the node, but what the site says "
            f"now makes it {compiled.plan.version()}",
            code="live.other_policy",
            hint="let the node take in the site: rapport policy reload",
        )
    return compiled.plan
