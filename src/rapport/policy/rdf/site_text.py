"""What was found in a graph as TOML for a site file. [PO-1]"""

from __future__ import annotations

import json
import re

from rapport.policy.rdf.imported import Found

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def site_text(found: Found) -> str:
    """The tables to put into `site.toml`; what a person must still say stands as comments."""
    blocks = [*_concepts(found), *_groups(found), *_relationships(found), *_containers(found)]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(value: object) -> str:
    """A value of TOML: JSON's texts are TOML's, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(values: list[str]) -> str:
    return f"[{', '.join(_text(value) for value in values)}]"


def _concepts(found: Found) -> list[str]:
    blocks: list[str] = []
    for name, concept in found.concepts.items():
        lines: list[str] = []
        if concept.above:
            lines += [f"[concepts.{_key(name)}]", f"is = {_text(concept.above)}"]
            where = ", ".join(f"{_key(key)} = {_text(one)}" for key, one in concept.where.items())
            given = f"where = {{ {where} }}"
            lines.append(
                given if where else f"# say which {concept.above} is one: where = {{ ... }}"
            )
        if concept.attributes or not concept.above:
            lines.append(f"[concepts.{_key(name)}.attributes]")
            lines += [f"{_key(key)} = {_text(kind)}" for key, kind in concept.attributes.items()]
        if concept.units:
            lines.append(f"[concepts.{_key(name)}.units]")
            lines += [f"{_key(key)} = {_text(unit)}" for key, unit in concept.units.items()]
        blocks.append("\n".join(lines))
    return blocks


def _groups(found: Found) -> list[str]:
    return [
        f"[groups.{_key(name)}]\nof = {_list(members)}" for name, members in found.groups.items()
    ]


def _relationships(found: Found) -> list[str]:
    blocks: list[str] = []
    for name, variants in found.relationships.items():
        firsts = list(dict.fromkeys(first for first, _, _ in variants))
        seconds = list(dict.fromkeys(second for _, second, _ in variants))
        lines = [f"[relationships.{_key(name)}]"]
        lines.append(f"between = [{_ends(firsts)}, {_ends(seconds)}]")
        lines.append(f"function = {_text(variants[0][2])}")
        if len(variants) != len(firsts) * len(seconds) or len({one[2] for one in variants}) > 1:
            lines.append("# joins more pairs than the file had, or had several functions: look")
        blocks.append("\n".join(lines))
    for name, pairs in found.undecided.items():
        shown = ", ".join(f"{one} and {other}" for one, other in pairs)
        lines = [f"# [relationships.{_key(name)}]  # {shown}: by which attributes, which function?"]
        lines.append(f'# between = ["{pairs[0][0]}.", "{pairs[0][1]}."]')
        lines.append('# function = ""')
        blocks.append("\n".join(lines))
    return blocks


def _ends(ends: list[str]) -> str:
    return _text(ends[0]) if len(ends) == 1 else _list(ends)


def _containers(found: Found) -> list[str]:
    return [
        f"[containers.{_key(name)}]\nof = {_list(levels)}"
        for name, levels in found.containers.items()
    ]
