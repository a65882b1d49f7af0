"""The command line: commands loaded when used, one mapping of errors to exit codes. [UX-3]

Exit codes: 0 ok, 1 found problems or could not be done now, 2 wrong use; as of all tools that a
signal ends, 130 after Ctrl-C and 141 when the reader of the output left (`| head`). Data on stdout,
all else on stderr.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path

from cyclopts import App, CycloptsError, Group

from rapport import __version__
from rapport.cli.hints import reading_hint, wrong_use
from rapport.cli.output import (
    leave_unread,
    open_closed_streams,
    print_note,
    show_error,
    write_out,
)
from rapport.core.errors import (
    InterpretationError,
    InvalidInput,
    PolicyError,
    RapportError,
    SiteError,
    Unavailable,
)

OK, PROBLEMS, WRONG_USE = 0, 1, 2
INTERRUPTED, UNREAD = 130, 141
_LISTS = ("quarantine", "list")
"""Commands that show what those beside them are about."""

app = App(
    name="rapport",
    help="People, devices and services that understand each other.",
    version=__version__,
    help_on_error=False,
)

COMMANDS = {
    "Start": (
        ("init", "site:init", "Make a new site directory to start from."),
        ("check", "site:check", "Find every mistake in a site before anything runs."),
        ("up", "service:up", "Run a node: endpoints, mediation, policies, deliveries."),
        ("demo", "demo:app", "Play a scenario end to end: sensors, alarms, mails."),
    ),
    "Sources": (
        ("add", "add_source:add", "Add a source: a file, a broker, an address."),
        ("import", "import_file:import_file", "Import a file, or guess what it means."),
        ("publish", "events:publish", "Send events to a running node."),
        ("read", "events:read", "Read a channel of a site."),
        ("listen", "events:listen", "Print events of a channel as they come."),
        ("mediate", "interpretations:app", "Interpretations: show, change, quarantine, release."),
        ("ontology", "ontology:app", "Concepts of a site: show, exchange as OWL."),
        ("tables", "ontology:tables_app", "Tables: how fresh they are; refresh one now."),
        ("outbox", "outbox:app", "Events that a publisher has not delivered yet."),
    ),
    "Policies": (
        ("policy", "policy:app", "Policies: show, format, deploy, review, load."),
        ("explain", "explain:explain", "Show what a message or detection follows from."),
        ("why-not", "explain:why_not", "Show why a policy did not fire."),
        ("load", "load:load", "Show how busy policies keep a node; follow it."),
    ),
    "History": (
        ("replay", "replay:replay", "Run policies over recorded events."),
        ("backtest", "backtest:backtest", "Try a policy on history; compare versions."),
        ("pipeline", "pipeline:app", "History on Spark: export, report."),
    ),
    "People": (
        ("peers", "peers:app", "People and groups: show, add, change, remove."),
        ("send", "send:send", "Send a message to people; see who it reached."),
        ("ledger", "ledger:app", "Show who was notified, how, when, and who answered."),
        ("routing", "info:routing_app", "Rules for who else gets a message."),
        ("info", "info:app", "What types of messages mean, how to answer them."),
    ),
    "Operate": (
        ("status", "service:status", "Show whether a site's node runs, and what is wrong."),
        ("stop", "service:stop", "Stop a site's node on this machine."),
        ("logs", "service:logs", "Show the log of a site's node."),
        ("reload", "service:reload", "Have a running node load its site's files again."),
        ("channel", "channel:app", "Channels: size, readers, interceptors, moving."),
        ("dead-letters", "dead_letters:app", "List, show, replay, forget dead letters."),
        ("access", "access:app", "Tokens, rights, keys, signatures."),
        ("doctor", "doctor:doctor", "Show what this installation can do."),
        ("completion", "site:completion", "Print a script that completes commands."),
    ),
    "Network": (
        ("links", "links:links", "Show the links to other nodes."),
        ("push", "links:app", "Events that a node pushes to others: show, end."),
        ("context", "context:app", "Present state of things: request, provide; brokers."),
        ("ensemble", "ensemble:app", "Run components that form groups and gossip."),
    ),
}  # fmt: skip
"""Name, place in `rapport.cli` and help of every command, by group."""
RENAMED = {
    "interpretation": ("interpretations:former_app", "mediate"),
    "messages": ("ledger:messages", "ledger messages"),
}
"""Commands of before, which work for one more release, and what they are part of now."""

_groups = {name: Group(name, sort_key=number) for number, name in enumerate(COMMANDS)}
for _group, _commands in COMMANDS.items():
    for _name, _path, _help in _commands:
        app.command(f"rapport.cli.{_path}", name=_name, help=_help, group=_groups[_group])
for _name, (_path, _instead) in RENAMED.items():
    app.command(f"rapport.cli.{_path}", name=_name, help=f"Now: rapport {_instead}.", show=False)
if find_spec("benchmarks"):  # of a checkout; the package does not hold them
    app.command(
        "benchmarks.command:bench",
        name="bench",
        help="Measure this machine.",
        group=_groups["Operate"],
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `rapport`; always ends by SystemExit."""
    open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal of another alphabet, or a file whose name is no text: shown, not failed over.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code once all its output is written."""
    try:
        return _written_out(_carried_out(arguments))
    except BrokenPipeError:
        return _unread()
    except SystemExit as end:
        # Help is printed by cyclopts on a console of its own, which ends us when its reader left.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return _unread()


def _carried_out(arguments: list[str] | None) -> int:
    """The exit code of one command; its errors are shown. Raises BrokenPipeError when the reader of
    what it says left.
    """
    _hint_at_new_name(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        return result if isinstance(result, int) else OK
    except CycloptsError as error:
        return _shown(_wrong_use(error), WRONG_USE)
    except (SiteError, PolicyError, InterpretationError) as error:
        return _shown(error, PROBLEMS)
    except InvalidInput as error:
        return _shown(error, WRONG_USE, listing=_listing(arguments))
    except RapportError as error:
        return _shown(error, PROBLEMS)
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as error:
        return _shown(_not_text(error), WRONG_USE)
    except OSError as error:
        # Only what no command knew better: a full disk below stdout, a place that may not be read.
        return _shown(_refused(error), PROBLEMS)
    except KeyboardInterrupt:
        return INTERRUPTED


def _hint_at_new_name(arguments: list[str]) -> None:
    """Names the present command on stderr where a former one is used."""
    present: dict[tuple[str, ...], str] = {
        (name,): instead for name, (_path, instead) in RENAMED.items()
    }
    present |= {
        ("mediate", "reload"): "reload",
        ("policy", "reload"): "reload",
        ("ensemble", "cars"): "demo car-sharing",
    }
    for former, instead in present.items():
        if tuple(arguments[: len(former)]) == former:
            print_note(f"hint: rapport {' '.join(former)} is now rapport {instead}")


def _shown(error: RapportError, code: int, *, listing: str = "") -> int:
    """The code; an error that nobody reads is one all the same."""
    try:
        show_error(error, listing=listing)
    except BrokenPipeError:
        leave_unread()
    return code


def _listing(arguments: list[str] | None) -> str:
    """The command that lists what the one given is about: `rapport peers list` of `peers show`;
    empty where there is none.
    """
    words, apps, _rest = app.parse_commands(arguments)
    beside = list(apps[-2]) if len(apps) > 1 else []
    lists = [name for name in _LISTS if name in beside]
    return " ".join(("rapport", *words[:-1], lists[0])) if lists else ""


def _written_out(code: int) -> int:
    """The code, unless the command succeeded and its output could not be written."""
    lost = write_out()
    if lost is None or code:
        return code
    return UNREAD if isinstance(lost, BrokenPipeError) else _shown(_refused(lost), PROBLEMS)


def _unread() -> int:
    """The end of a command whose reader left (`| head`). No success: `check | head` has not shown
    whether the site is sound.
    """
    leave_unread()
    return UNREAD


def _wrong_use(error: CycloptsError) -> InvalidInput:
    """Words that are no command or option, as any other error: in one piece, not cut to fit a box
    that a file or another program would get as well.
    """
    command = " ".join(("rapport", *(error.command_chain or ())))
    return wrong_use(str(error), f"{command} --help")


def _not_text(error: UnicodeEncodeError) -> InvalidInput:
    """Bytes at the terminal that are no UTF-8 reach us as letters that nobody can encode."""
    return InvalidInput(
        f"{error.object!r} is not text in UTF-8",
        code="cli.not_text",
        hint="is the terminal set to another encoding?",
    )


def _refused(error: OSError) -> Unavailable:
    where = f"{error.filename}: " if error.filename else ""
    return Unavailable(
        f"{where}{error.strerror or error}",
        code="cli.system",
        hint=reading_hint(Path(str(error.filename)), error)
        if error.filename
        else "is the disk full that the output goes to?",
    )


if __name__ == "__main__":
    main()
