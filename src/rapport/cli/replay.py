"""`rapport replay`: runs policies over recorded events or the site's log, in this process or on
Spark. [PO-8, UX-3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from rapport.cli.arguments import ALL_HISTORY, HistoryOptions, SiteOption, site_directory
from rapport.cli.output import (
    print_note,
    show_problems,
    stderr,
    stdout,
    write_result,
)
from rapport.core.errors import Problem

if TYPE_CHECKING:
    from rich.text import Text

    from rapport.policy.replay.replay import FaultyRows, ReplayResult

_SHOWN_PROBLEMS = 20
_FAILED = "policy.failed"


def replay(
    *,
    site: SiteOption = None,
    policy: Annotated[list[str] | None, Parameter(help="Only these policies.")] = None,
    events: Annotated[list[str] | None, Parameter(help="Event files, or SOURCE=FILE.")] = None,
    from_log: Annotated[bool, Parameter(help="Over the site's own log.", negative="")] = False,
    changed: Annotated[
        Path | None, Parameter(help="A changed policy: list what it finds otherwise.")
    ] = None,
    readable: Annotated[bool, Parameter(help="For people, not as JSON.", negative="")] = False,
    show: Annotated[int, Parameter(help="For people: so many of each policy.")] = 20,
    strict: Annotated[bool, Parameter(help="Stop at the first faulty row.", negative="")] = False,
    out: Annotated[Path | None, Parameter(help="File to write to instead of stdout.")] = None,
    batch: Annotated[int, Parameter(help="Events per step.")] = 10_000,
    stop_after: Annotated[int | None, Parameter(help="Stop after this many events.")] = None,
    resume: Annotated[bool, Parameter(help="Go on where --stop-after ended.", negative="")] = False,
    as_live: Annotated[
        bool, Parameter(help="Over the site's own log: what live decided.", negative="")
    ] = False,
    history: HistoryOptions = ALL_HISTORY,
) -> int:
    """Run policies over recorded events; one detection per line as JSON, sorted.

    Files of sources with an interpretation are raw: they get their meaning first, as live. With
    --changed FILE the site's policy of that name (or the one of --policy) is compared with it.
    With --as-live the log is read in the order of arrival, with the waits, late readings, moves and
    resets of time and changes of policies and tables that the node met.
    """
    from rapport.cli.replay_run import (
        ReplayPolicies,
        ReplayRequest,
        ReplayText,
        choose_policies,
        run_over,
        time_zone,
    )
    from rapport.core.detection import detection_lines
    from rapport.policy.replay.replay import difference_lines
    from rapport.site.context import check_without_context
    from rapport.site.site import load_site

    over = ReplayRequest(
        events=tuple(events or ()),
        policies=tuple(policy or ()),
        from_log=from_log or as_live,
        as_live=as_live,
        strict=strict,
        batch=batch,
        stop_after=stop_after,
        resume=resume,
        **history.as_request(),
    )
    over.check(changed)
    time_zone(history.zone)
    directory = site_directory(site)
    chosen: ReplayPolicies = choose_policies(
        load_site(directory, policies=policy or None), policy or (), changed
    )
    if over.tables == "now" or not over.from_log:  # else the log may have on record what was known
        check_without_context(chosen.site.tables, chosen.all_plans(), "a replay")
    shown = ReplayText(chosen.site.ontology, chosen.shown_plans(), history.zone, show)
    with _watched() as seen:
        result, readings = run_over(
            chosen, over, seen, lambda found: shown.causes(found, chosen) if readable else set()
        )
    if readable:
        _write_text(shown.text(result, readings, chosen), out)
    elif chosen.changed is not None:
        write_result(difference_lines(chosen.compared(result).differences), out)
    else:
        write_result(detection_lines(result.detections), out)
    _show_problems(result)
    _summarise(result, chosen.counts(result))
    return int(bool(result.problems))


@contextmanager
def _watched() -> Iterator[Callable[[int], None]]:
    """A line of progress on a terminal; nothing elsewhere."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _events: None
        return
    with console.status("replaying …") as status:
        yield lambda events: status.update(f"replaying … {events:,} events")


def _write_text(lines: list[Text], out: Path | None) -> None:
    if out is not None:
        write_result("".join(f"{line.plain}\n" for line in lines).encode(), out)
        return
    console = stdout()
    for line in lines:
        console.print(line, soft_wrap=True)


def _show_problems(result: ReplayResult) -> None:
    """Faulty rows by reason with the first place of each, then policies that failed."""
    problems = [_together(rows) for rows in result.faulty]
    problems += [problem for problem in result.problems if problem.code == _FAILED]
    show_problems(problems[:_SHOWN_PROBLEMS])


def _together(rows: FaultyRows) -> Problem:
    if rows.count == 1:
        return rows.first
    places = ", ".join(str(line) for line in rows.lines[1:])
    more = ", …" if rows.count > len(rows.lines) else ""
    message = f"{rows.first.message} (and {rows.count - 1:,} more rows: {places}{more})"
    return msgspec.structs.replace(rows.first, message=message)


def _summarise(result: ReplayResult, counts: str) -> None:
    parts = [f"{counts} in {result.events:,} events"]
    if result.undecided:
        silent = sorted({name for item in result.undecided for name in item.silent})
        parts.append(f"{len(result.undecided):,} undecided (silent: {', '.join(silent)})")
    if result.late:
        parts.append(f"{len(result.late):,} late and left out")
    failed = sum(problem.code == _FAILED for problem in result.problems)
    if failed:
        parts.append(f"{failed:,} policies failed")
    if result.faulty:
        parts.append(f"{sum(rows.count for rows in result.faulty):,} rows could not be read")
    still_open = sum(counts.open for counts in result.situations.values())
    pending = sum(counts.pending for counts in result.situations.values())
    if still_open:
        parts.append(f"{still_open:,} still open")
    if pending:
        parts.append(f"{pending:,} not told yet")
    if result.stopped:
        parts.append("stopped; go on with --resume")
    print_note("; ".join(parts))
