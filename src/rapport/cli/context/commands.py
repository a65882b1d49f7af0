"""`rapport context`: what is true now, from a network of brokers. [CX-3]"""

from __future__ import annotations

from cyclopts import App

app = App(name="context", help="Ask and tell what is true now; run and join brokers.")

_COMMANDS = (
    ("broker", "rapport.cli.context.broker:broker", "Run a broker, alone or in a network."),
    ("provide", "rapport.cli.context.telling:provide", "Tell what is true, once or at a rate."),
    ("request", "rapport.cli.context.asking:request", "Ask what is true now."),
    ("subscribe", "rapport.cli.context.asking:subscribe", "Be told whenever it changes."),
    ("history", "rapport.cli.context.history:history", "Show what was told in the past."),
    ("join", "rapport.cli.context.control:join", "Have a broker join others."),
    ("leave", "rapport.cli.context.control:leave", "Have a broker leave the network."),
    ("monitor", "rapport.cli.context.control:monitor", "Have a broker watch its neighbours."),
    ("status", "rapport.cli.context.control:status", "Show what a broker holds and knows."),
    ("keys", "rapport.cli.context.keys:app", "Make, list and retire keys."),
)

for _name, _path, _help in _COMMANDS:
    app.command(_path, name=_name, help=_help)
