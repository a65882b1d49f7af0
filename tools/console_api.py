"""Writes the OpenAPI document for the build of the console.

`python -m tools.console_api ui/openapi.json`: the types of the client are generated from it
(`npm run types` in ui/).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from litestar import Litestar

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import make_app
from rapport.web.openapi import completed, documented_routes


def api_document() -> str:
    """The document of a node's endpoints; the same for every site."""
    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory)
        (site / "site.toml").write_text('[site]\nname = "any"\n')
        node = make_node(load_site(site), NodeSettings(), SystemClock())
        app: Litestar = make_app(node)
        document = completed(app.openapi_schema.to_schema(), documented_routes(app))
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(api_document())
