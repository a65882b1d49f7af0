"""The policies of a back-test: by name, from a file, or as they were at a time. [PI-9]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import InvalidInput, SiteError, UnknownName
from rapport.policy.lifecycle.registry import WITH_TEXT, RecordedChange, text_of_version
from rapport.policy.plan import PolicyPlan
from rapport.policy.replay.replay import renamed_plan
from rapport.policy.situation_plan import SituationPlan
from rapport.site.interpretations import terms_of_policies
from rapport.site.policies import PolicyFile, compile_text, policy_files, read_policy

if TYPE_CHECKING:
    from rapport.site.site import Site


OnRecord = Callable[[], Sequence[RecordedChange]]
"""All changes of policies that the site's log has; asked only when files do not know a name."""


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a policy that runs."""

    given: str
    """As the user wrote it."""
    label: str
    name: str
    plan: PolicyPlan
    """Under a name of its own where two of the same name run."""
    text: str

    def aliases(self) -> dict[str, str]:
        """The concept of each alias that its detections bind: not those of what must not be."""
        if isinstance(self.plan, SituationPlan):
            return {bound.alias: bound.concept for bound in self.plan.aliases}
        numbers = sorted(self.plan.positive_terms()) or range(len(self.plan.terms))
        terms = [self.plan.terms[number] for number in numbers]
        sides = [side for term in terms for side in (term.first, term.second)]
        return {side.alias: side.concept for side in sides}


def choose(site: Site, given: str, on_record: OnRecord) -> Contender:
    """The policy that is meant by a name, `NAME@version` or the path of a file.

    Raises UnknownName with the nearest name, SiteError with the faults of the policy.
    """
    if given.endswith(".dpl") or (("/" in given or "." in given) and Path(given).is_file()):
        path = Path(given)
        if not path.is_file():
            raise InvalidInput(
                f"there is no policy file {given}",
                code="policy.unreadable",
                hint="a name without .dpl means a policy of the site",
            )
        file = PolicyFile(path.stem, path, given)
        return _compiled(site, given, path.name, file, _text(file))
    files, _window, _problems = policy_files(site.file, site.directory)
    name, at, version = given.partition("@")
    if not at and name in files:
        return _compiled(site, given, name, files[name], _text(files[name]))
    text = _recorded(name, version, on_record(), sorted(files))
    label = f"{name}@{version}" if at else name
    return _compiled(site, given, label, PolicyFile(name, Path(given), given), text)


def with_text(site: Site, contender: Contender, text: str) -> Contender:
    """The same policy with another text; raises SiteError with the faults of the text."""
    file = PolicyFile(contender.name, Path(contender.given), contender.given)
    return _compiled(site, contender.given, contender.label, file, text)


def opponents(first: Contender, second: Contender) -> tuple[Contender, Contender, list[str]]:
    """Both so that they can run side by side, and the aliases that both speak of alike. Raises
    InvalidInput when there are none: nothing that they find could be the same.
    """
    ours, theirs = first.aliases(), second.aliases()
    shared = sorted(alias for alias in ours if theirs.get(alias) == ours[alias])
    if not shared and (ours or theirs):  # situations of none are about the same
        raise InvalidInput(
            f"{first.label} speaks of {_spoken(ours)}, {second.label} of {_spoken(theirs)}: "
            "nothing that they find could be the same",
            code="backtest.not_comparable",
            hint="compare policies that have an alias in common, of the same concept",
        )
    if first.label == second.label:
        second = msgspec.structs.replace(second, label=f"{second.label} (other)")
    return first, msgspec.structs.replace(second, plan=renamed_plan(second.plan)), shared


def _spoken(aliases: dict[str, str]) -> str:
    return ", ".join(f"{concept} {alias}" for alias, concept in sorted(aliases.items()))


def _text(file: PolicyFile) -> str:
    text, problems = read_policy(file)
    if text is None:
        raise SiteError(problems)
    return text


def _compiled(site: Site, given: str, label: str, file: PolicyFile, text: str) -> Contender:
    terms, faults = terms_of_policies(site.file, site.directory, site.ontology, [file.name])
    compiled, problems = compile_text(
        file, text, site.ontology, site.window_ms, terms.terms.get(file.name)
    )
    if compiled is None:
        errors = [one for one in (*faults, *problems) if one.severity == "error"]
        raise SiteError(errors)
    return Contender(
        given=given,
        label=label,
        name=file.name,
        plan=compiled.plan,
        text=text,
    )


def _recorded(
    name: str, version: str, changes: Sequence[RecordedChange], files: Sequence[str]
) -> str:
    """The text of a version, or the newest one, of a policy that is on record."""
    own = [kept for kept in changes if kept.changed.name == name]
    texts = [kept.changed for kept in own if kept.changed.what in WITH_TEXT and kept.changed.text]
    if not texts:
        known = sorted({*files, *(kept.changed.name for kept in changes)})
        raise UnknownName("policy", name, known, code="policy.unknown")
    if not version:
        return texts[-1].text
    versions = list(dict.fromkeys(kept.changed.version for kept in own if kept.changed.version))
    meant = [one for one in versions if one.startswith(version)]
    text = text_of_version(own, meant[0]) if len(meant) == 1 else ""
    if not text:
        raise UnknownName(f"version of {name}", version, versions, code="policy.unknown_version")
    return text


def version_of(contender: Contender) -> str:
    """The version that the policy would have under its own name."""
    plan = msgspec.structs.replace(contender.plan, policy=contender.name)
    return plan.version()
