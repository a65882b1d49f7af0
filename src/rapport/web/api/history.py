"""Runs over history: back-tests and reports of the lake. [CN-13]

Everybody with any right sees them; starting, cancelling and removing needs the role of an editor.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import msgspec
from litestar import Response, get
from litestar.params import FromPath

from rapport.core.json_objects import ObjectDecoder
from rapport.kernel.tasks import run_blocking
from rapport.node.history_runs import HistoryRequest, HistoryResult, HistoryRun
from rapport.node.node import Node
from rapport.site.pipeline import RunPlaces, is_held, read_status
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_any_right,
    require_role,
)
from rapport.web.endpoint_docs import HTML, JSON, TEXT, documented


class HistoryRunList(msgspec.Struct, frozen=True, kw_only=True):
    """All runs, newest first, and what a new one may choose from."""

    runs: list[HistoryRun]
    recorded: list[str]
    """Sources that name recorded files."""
    has_lake: bool
    """Whether this installation can write a lake, which the history of the log needs."""
    has_spark: bool
    spark_ui: str
    """Spark's own page while the pipeline of the site runs; empty otherwise."""


class HistoryRunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its result."""

    run: HistoryRun
    result: HistoryResult | None = None
    """None as long as there is none, and of reports."""


_READ_REQUEST = ObjectDecoder(
    HistoryRequest,
    fault="this is no run over history",
    code="history.bad_request",
    hint='such as {"policy": "too-warm", "history": "log"}',
)


@get("/history/runs", opt=documented(answer=HistoryRunList))
async def list_runs(request: HttpRequest, node: NodeDependency) -> Reply:
    """All runs with their state and progress, newest first."""
    require_any_right(request, node, "runs over history")
    return json_response(
        HistoryRunList(
            runs=node.history_runs.runs(),
            recorded=sorted(node.history_runs.recordings()),
            has_lake=find_spec("deltalake") is not None,
            has_spark=find_spec("pyspark") is not None,
            spark_ui=await run_blocking(lambda: next(_spark_ui(node), "")),
        )
    )


def _spark_ui(node: Node) -> Iterator[str]:
    places = RunPlaces.of(node.site.data_directory)
    status = read_status(places)
    if status is not None and is_held(places.lock):
        yield status.spark_ui


@post(
    "/history/runs",
    status_code=201,
    opt=documented(
        bodies={JSON: HistoryRequest},
        example={"policy": "too-warm", "history": "log"},
        answer=HistoryRun,
        statuses=("201",),
    ),
)
async def start_run(request: HttpRequest, node: NodeDependency) -> Reply:
    """Puts a run into the queue; one runs at a time. 429 when too many wait."""
    identity = require_role(request, node, "editor")
    wanted = _READ_REQUEST.decode(await request.body())
    run = await node.history_runs.start(node.ids.new(), wanted, identity)
    return json_response(run, status=201)


@get("/history/runs/{run:str}", opt=documented(answer=HistoryRunView))
async def show_run(request: HttpRequest, run: FromPath[str], node: NodeDependency) -> Reply:
    """One run, and what it found."""
    require_any_right(request, node, "runs over history")
    found = node.history_runs.get(run)
    return json_response(HistoryRunView(run=found, result=await node.history_runs.result(run)))


@get("/history/runs/{run:str}/report", opt=documented(answer=TEXT, media=(HTML,)))
async def show_report(request: HttpRequest, run: FromPath[str], node: NodeDependency) -> Reply:
    """The page that the command wrote, as a file to keep."""
    require_any_right(request, node, "runs over history")
    page = await node.history_runs.report(run)
    headers = {"Content-Disposition": f'attachment; filename="history-{run}.html"'}
    return Response(page, media_type="text/html", headers=headers)


@delete("/history/runs/{run:str}", opt=documented(answer=HistoryRun))
async def cancel_run(request: HttpRequest, run: FromPath[str], node: NodeDependency) -> Reply:
    """Ends a run that waits or runs, with all its processes; removes one that is over."""
    require_role(request, node, "editor")
    return json_response(await node.history_runs.cancel(run))
