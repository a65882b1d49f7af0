"""What commands and doors ask to explain policies of a site: its log, or recorded files. [PO-11]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import UnknownName
from rapport.policy.explain.answer import AnswerNote, WhyNotAnswer
from rapport.policy.explain.evidence import LateReading, needed_range, needs_last_values
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.why_not import WhyNotQuestion, check_aliases, why_not
from rapport.policy.replay.replay import Recording, RowFaults, replay
from rapport.site.context import check_without_context
from rapport.site.explaining_files import FilesAround, Found
from rapport.site.policies import policy_files, read_policy
from rapport.site.replaying import recordings_in_site
from rapport.site.tables_then import tables_at
from rapport.site.terms import terms_of_policies

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.core.detection import Detection
    from rapport.mediation.interpretations.repository import ActiveInterpretations
    from rapport.policy.compiler.compile import CompiledPolicy
    from rapport.policy.plan import Plan
    from rapport.site.site import Site

_MOST_LATE = 8


def asking_of(
    site: Site, channels: Channels, *, may_read: Callable[[str], bool] | None = None
) -> Explainer:
    """Questions to the log of a site; `may_read` says which raw channels may be shown, and whether
    the rows that tables had and what was known of context may.
    """
    return Explainer(
        channels,
        site.ontology,
        site.tables,
        policy_texts(site),
        lambda name, text: plan_of_text(site, name, text),
        lateness_ms=site.lateness_ms,
        may_read=may_read,
        tables_at=tables_at(
            site.tables,
            site.ontology,
            channels,
            lateness_ms=site.lateness_ms,
            may_read=may_read,
        ),
    )


def policy_texts(site: Site) -> dict[str, str]:
    """What the site's files say, as far as they can be read."""
    files, _window, _problems = policy_files(site.file, site.directory)
    read = {name: read_policy(file)[0] for name, file in files.items()}
    return {name: text for name, text in read.items() if text is not None}


def plan_of_text(site: Site, name: str, text: str) -> Plan:
    """The plan of any version of a policy; raises PolicyError."""
    return compiled_of_text(site, name, text).plan


def compiled_of_text(site: Site, name: str, text: str) -> CompiledPolicy:
    """What any version of a policy means now; raises PolicyError."""
    from rapport.policy.compiler.compile import compile_policy

    terms, _problems = terms_of_policies(site.file, site.directory, site.ontology, [name])
    return compile_policy(
        text,
        name=name,
        ontology=site.ontology,
        window_ms=site.window_ms,
        terms=terms.terms.get(name),
    )


def recorded_answer(
    site: Site,
    policy: str,
    question: WhyNotQuestion,
    events: Sequence[str],
    *,
    in_force: ActiveInterpretations | None = None,
) -> WhyNotAnswer:
    """The same from recorded files: of Parquet in root form the row groups that touch the time are
    read, others once from beginning to end; only the readings around the time are kept. `in_force`:
    the interpretations of raw files; None: those of the site's files.
    """
    texts = policy_texts(site)
    if policy not in texts:
        raise UnknownName("policy", policy, sorted(texts), code="policy.unknown")
    plan = plan_of_text(site, policy, texts[policy])
    check_without_context(site.tables, [plan], "recorded files")
    check_aliases(plan, question.given)
    recordings = recordings_in_site(site, events, in_force=in_force)
    reach = needed_range(plan, site.ontology.sources, question.span(plan))
    faults = RowFaults()
    files = FilesAround(
        site.ontology,
        reach,
        lateness_ms=site.lateness_ms,
        with_last=needs_last_values(plan),
        report=faults.report,
    )
    found = files.read(recordings)
    readings = [*found.last.values(), *found.readings]
    late = [LateReading(one.time, one.stream, one.key) for one in found.late]
    answer = why_not(
        plan,
        site.ontology,
        site.tables,
        readings,
        question,
        reported=_reported(site, plan, recordings),
        began=found.first,
        late=late,
    )
    notes = (*_late(found), *_unread(faults))
    return msgspec.structs.replace(answer, text=texts[policy], notes=notes)


def _reported(site: Site, plan: Plan, recordings: Sequence[Recording]) -> list[Detection] | None:
    """What a replay of the files reports, for `at most once per`: whether something is suppressed
    depends on everything before it. None where it does not matter.
    """
    if plan.once_per_ms is None:
        return None
    found = replay(site.ontology, site.tables, [plan], recordings, lateness_ms=site.lateness_ms)
    return found.detections


def _late(found: Found) -> list[AnswerNote]:
    """The readings of the time that a replay does not count, some of them."""
    return [
        AnswerNote(
            kind="late",
            text=f"the {one.stream.partition('.')[2]} of {one.key} stands too far behind others in "
            "its file, too late to count",
            time=one.time,
            event=one.id,
        )
        for one in found.late[:_MOST_LATE]
    ]


def _unread(faults: RowFaults) -> list[AnswerNote]:
    """What of the files could not be used, by reason."""
    return [
        AnswerNote(
            kind="reach",
            text=f"{rows.count:,} rows of {rows.first.file} could not be read, the first in line "
            f"{rows.first.line}: {rows.first.message}",
        )
        for rows in faults.by_reason()
    ]
