"""`rapport channel`: looking after the channels of a site. [CH-10, CH-13, CH-14]"""

from __future__ import annotations

from cyclopts import App

app = App(name="channel", help="Look after the channels of a site.")

app.command("rapport.cli.channels.move:move", name="move", help="Move a channel to another store.")
app.command(
    "rapport.cli.channels.channel_care:state", name="state", help="Show what it holds, who reads."
)
app.command(
    "rapport.cli.channels.channel_care:forget_reader",
    name="forget-reader",
    help="Forget the place of a reader that will not come back.",
)
app.command(
    "rapport.cli.channels.channel_care:intercept",
    name="intercept",
    help="Add, remove, list interceptors.",
)
