"""The tables that plans meet in a history: as they are now, or as they were at each time. [PI-5]"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rapport.core.errors import Unsupported
from rapport.pipeline.worker_tables import WorkerTables, tables_for
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.table_history import PullByTime, TableSwitch, as_pull_by_time
from rapport.tables.instances import Instances

Pull = PullData | PullByTime


MOST_ROWS_SENT = 10_000_000
"""Instances of all versions together that travel to workers; some 100 bytes each."""


def is_changing(pull: Pull) -> bool:
    """Whether tables change in the history: then they cannot tell which readings to leave out, or
    to send to one bucket only.
    """
    return isinstance(pull, PullByTime) and bool(pull.switches)


def first_of(pull: Pull) -> PullData:
    """The tables at the beginning."""
    return as_pull_by_time(pull).pull


def tables_for_workers(plans: Sequence[PolicyPlan], pull: Pull) -> Pull:
    """The tables that plans use as plain data; rows that did not change are sent once. Raises
    Unsupported if there are too many.
    """
    by_time, sent = as_pull_by_time(pull), dict[int, Instances]()

    def plain(tables: PullData) -> WorkerTables:
        made = tables_for(plans, tables)
        sent.update((id(one), one) for one in made.held())
        count = sum(len(one) for one in sent.values())
        if count > MOST_ROWS_SENT and by_time.switches:
            raise Unsupported(
                f"{count:,} rows of then, all versions together,",
                "Spark",
                hint="choose a shorter period, use --tables now, or leave out --engine spark",
            )
        return made

    first = plain(by_time.pull)
    switches = tuple(
        TableSwitch(one.since, partial(_itself, plain(one.pull()))) for one in by_time.switches
    )
    return PullByTime(pull=first, switches=switches) if switches else first


def _itself(tables: PullData) -> PullData:
    return tables
