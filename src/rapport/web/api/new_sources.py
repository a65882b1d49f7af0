"""New sources: what a sample seems to mean, writing it into the site's file, taking it back. [CN-6]

All of it needs the role of an editor.
"""

from __future__ import annotations

import msgspec
from litestar import get, put
from litestar.params import FromPath

from rapport.core.errors import InvalidInput
from rapport.core.json_objects import ObjectDecoder
from rapport.mediation.guessing.choices import SourceChoices
from rapport.node.source_files import MAX_SAMPLE_BYTES, SourceFiles, SourceWritten
from rapport.site.new_source import NewSource, SourceDraft
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_role,
)
from rapport.web.endpoint_docs import JSON, documented

_LONGEST_NAME = 61


class SourceSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample of the data of a source, and what somebody says about them."""

    sample: bytes
    """The beginning of the data in base64, at most 1 MiB; a Parquet file as a whole."""
    name: str = ""
    """Of the source; not where the path says it."""
    origin: str = "a sample"
    """What it is of, such as the name of a file; stands in a comment."""
    format: str = ""
    """Such as `csv`; empty: found out."""
    choices: SourceChoices = SourceChoices()
    takes_likely: bool = False
    """Takes the likely answers for what the data do not say."""


class AddedSources(msgspec.Struct, frozen=True):
    """Sources that can be taken back."""

    sources: list[str]


_EXAMPLE = {
    "name": "freezers",
    "sample": "aWQsd2hlbix0X2RlZ0MKYSwyMDI2LTAzLTAyVDIwOjAwWiwxLjUK",
    "choices": {"zone": "Europe/Berlin", "units": {"temp": "degC"}},
}
_READ = ObjectDecoder(
    SourceSample,
    fault="this is no sample of a source",
    code="source.bad_sample",
    hint='such as {"name": "freezers", "sample": BASE64}',
)


@post(
    "/site/sources/guess",
    opt=documented(bodies={JSON: SourceSample}, example=_EXAMPLE, answer=SourceDraft),
)
async def guess_source(request: HttpRequest, node: NodeDependency) -> Reply:
    """What the columns of a sample seem to mean, with doubts and open questions, the text for
    site.toml, what the check says of it and the readings of the first rows. Nothing is changed.
    """
    require_role(request, node, "editor")
    new = await _new_source(request, "")
    return json_response(await _files(request).draft(new))


@get("/site/sources", opt=documented(answer=AddedSources))
async def list_added_sources(request: HttpRequest, node: NodeDependency) -> Reply:
    """The sources that were added from a sample and can be taken back."""
    require_role(request, node, "editor")
    return json_response(AddedSources(await _files(request).added()))


@put(
    "/site/sources/{source:str}",
    opt=documented(bodies={JSON: SourceSample}, example=_EXAMPLE, answer=SourceWritten),
)
async def add_source(request: HttpRequest, source: FromPath[str], node: NodeDependency) -> Reply:
    """Adds a source to the site's file after checking it with everything else, and takes it over.
    Refused with every problem at its place; then nothing is changed.
    """
    identity = require_role(request, node, "editor")
    new = await _new_source(request, source)
    return json_response(await _files(request).add(new, by=identity))


@delete("/site/sources/{source:str}", opt=documented(answer=SourceWritten))
async def take_source_back(
    request: HttpRequest, source: FromPath[str], node: NodeDependency
) -> Reply:
    """Takes a source out of the site's file that was added from a sample and not changed since; its
    readings stay in the log.
    """
    identity = require_role(request, node, "editor")
    return json_response(await _files(request).take_back(source, by=identity))


def _files(request: HttpRequest) -> SourceFiles:
    files: SourceFiles = request.app.state.source_files
    return files


async def _new_source(request: HttpRequest, name: str) -> NewSource:
    body = _READ.decode(await request.body())
    if len(body.sample) > MAX_SAMPLE_BYTES:
        raise InvalidInput(
            f"the sample has {len(body.sample):,} bytes",
            code="source.sample_too_large",
            hint="send the first 100 kB; rapport add FILE reads whole files of Parquet",
        )
    if len(name or body.name) > _LONGEST_NAME:
        raise InvalidInput("the name of a source has at most 61 characters", code="source.bad_name")
    return NewSource(
        name=name or body.name or "source",
        raw=body.sample,
        origin=body.origin[:200],
        format=body.format,
        choices=body.choices,
        takes_likely=body.takes_likely,
    )
