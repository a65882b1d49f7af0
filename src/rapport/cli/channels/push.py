"""`rapport push`: what a running node pushes to others. [CH-2]"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from rapport.cli.remote import Remote, TokenFileOption, UrlOption
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr, write_json, write_table

app = App(name="push", help="Look at what a node pushes to others, and end it.")


@app.command(name="list")
def list_pushes(
    *,
    site: SiteOption = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """Show push subscriptions: where to, until when, how many messages, and what is wrong."""
    found = Remote.of_site(site_directory(site), url, token_file).get("/pushes")
    if json:
        write_json(found)
        return
    columns = ("session", "channel", "identity", "address", "until", "messages", "trouble")
    write_table("pushes", columns, [[str(one[column]) for column in columns] for one in found])


@app.command
def cancel(
    session: str,
    *,
    site: SiteOption = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """End a push subscription; what was not sent yet stays in its channel."""
    remote = Remote.of_site(site_directory(site), url, token_file)
    remote.post(f"/pushes/{quote(session, safe='')}/cancel", b"")
    stderr().print(f"{session} is pushed no more", highlight=False)
