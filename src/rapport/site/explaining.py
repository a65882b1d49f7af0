"""What commands and doors ask to explain policies of a site: its log, or recorded files. [PO-11]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import UnknownName
from rapport.policy.explaining.asking import Asking
from rapport.policy.explaining.reach import needs_last_values, reach_of
from rapport.policy.explaining.verdict import Answer, Note
from rapport.policy.explaining.why_not import Question, check_aliases, why_not
from rapport.policy.explaining.world import Reading, readings_of
from rapport.policy.replay import DEFAULT_BATCH
from rapport.policy.replay_faults import Faults
from rapport.site.policies import policy_files, read_policy
from rapport.site.replaying import recordings_in_site
from rapport.site.terms import terms_of_policies

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.mediation.in_force import InForce
    from rapport.policy.ontology import Ontology
    from rapport.policy.plan import Plan
    from rapport.site.site import Site


def asking_of(
    site: Site, channels: Channels, *, may_read: Callable[[str], bool] | None = None
) -> Asking:
    """Questions to the log of a site; `may_read` says which raw channels may be shown."""
    return Asking(
        channels,
        site.ontology,
        site.tables,
        policy_texts(site),
        lambda name, text: plan_of_text(site, name, text),
        lateness_ms=site.lateness_ms,
        may_read=may_read,
    )


def policy_texts(site: Site) -> dict[str, str]:
    """What the site's files say, as far as they can be read."""
    files, _window, _problems = policy_files(site.file, site.directory)
    read = {name: read_policy(file)[0] for name, file in files.items()}
    return {name: text for name, text in read.items() if text is not None}


def plan_of_text(site: Site, name: str, text: str) -> Plan:
    """The plan of any version of a policy; raises PolicyError."""
    from rapport.policy.compiler.compile import compile_policy

    terms, _problems = terms_of_policies(site.file, site.directory, site.ontology, [name])
    return compile_policy(
        text,
        name=name,
        ontology=site.ontology,
        window_ms=site.window_ms,
        terms=terms.terms.get(name),
    ).plan


def recorded_answer(
    site: Site,
    policy: str,
    question: Question,
    events: Sequence[str],
    *,
    in_force: InForce | None = None,
) -> Answer:
    """The same from recorded files, which are read once from beginning to end; only the readings
    around the time are kept. `in_force`: the interpretations of raw files; None: those of the
    site's files.
    """
    texts = policy_texts(site)
    if policy not in texts:
        raise UnknownName("policy", policy, sorted(texts), code="policy.unknown")
    plan = plan_of_text(site, policy, texts[policy])
    check_aliases(plan, question.given)
    recordings = recordings_in_site(site, events, in_force=in_force)
    reach = reach_of(plan, site.ontology.sources, question.span(plan))
    last: dict[tuple[str, str], Reading] = {}
    kept: list[Reading] = []
    first: int | None = None
    faults = Faults()
    for item in recordings:
        for batch in item.batches(site.ontology, DEFAULT_BATCH, faults.report):
            times = batch.column("time")
            earliest = pc.min(times).as_py()
            first = earliest if first is None else min(first, earliest)
            inside = pc.and_(pc.greater_equal(times, reach.start), pc.less_equal(times, reach.end))
            kept += readings_of(batch.filter(inside), site.ontology)
            if needs_last_values(plan):
                for reading in _last_before(batch, reach.start, site.ontology):
                    _keep_last(last, reading)
    readings = [*last.values(), *kept]
    answer = why_not(plan, site.ontology, site.tables, readings, question, began=first)
    return msgspec.structs.replace(answer, text=texts[policy], notes=tuple(_unread(faults)))


def _unread(faults: Faults) -> list[Note]:
    """What of the files could not be used, by reason."""
    return [
        Note(
            kind="reach",
            text=f"{rows.count:,} rows of {rows.first.file} could not be read, the first in line "
            f"{rows.first.line}: {rows.first.message}",
        )
        for rows in faults.by_reason()
    ]


def _last_before(batch: pa.RecordBatch, start: int, ontology: Ontology) -> list[Reading]:
    """Of everybody the last reading before a time; the others are not even looked at."""
    earlier = batch.filter(pc.less(batch.column("time"), start))
    if not len(earlier):
        return []
    ordered = earlier.sort_by([("time", "ascending"), ("id", "ascending")])
    rows = pa.table(
        {
            "stream": ordered.column("stream"),
            "key": ordered.column("key"),
            "row": pa.array(range(len(ordered))),
        }
    )
    chosen = rows.group_by(["stream", "key"]).aggregate([("row", "max")]).column("row_max")
    return readings_of(ordered.take(chosen.combine_chunks()), ontology)


def _keep_last(last: dict[tuple[str, str], Reading], reading: Reading) -> None:
    key = (reading.stream, reading.key)
    known = last.get(key)
    if known is None or (known.time, known.id) <= (reading.time, reading.id):
        last[key] = reading
