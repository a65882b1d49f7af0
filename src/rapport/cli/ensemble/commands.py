"""`rapport ensemble`: components that form groups by what they know. [EN-10]"""

from __future__ import annotations

from cyclopts import App

from rapport.cli.laboratory import lab_command

app = App(name="ensemble", help="Run components that form groups and gossip; measure them.")

_COMMANDS = (
    ("run", "rapport.cli.ensemble.run:run", "Run the components of a file on a node."),
    ("status", "rapport.cli.ensemble.status:status", "Show what a running node knows."),
    (
        "check-trace",
        lab_command("rapport_lab.commands.check_trace:check_trace"),
        "Check a trace by the rules.",
    ),
    (
        "experiment",
        lab_command("rapport_lab.commands.experiment_command:experiment"),
        "Repeat the experiments of the source.",
    ),
    (
        "membership",
        lab_command("rapport_lab.commands.membership_command:membership"),
        "Measure failure detection.",
    ),
    ("cars", lab_command("rapport_lab.commands.cars:cars"), "Play car sharing; see it on a map."),
    ("keys", "rapport.cli.context.keys:app", "Make, list and retire keys."),
)

for _name, _path, _help in _COMMANDS:
    app.command(_path, name=_name, help=_help)
