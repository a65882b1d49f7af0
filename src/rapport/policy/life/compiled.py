"""Texts of policies and what they compile to, each compiled once. [PO-5, PO-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rapport.core.errors import PolicyError, Problem
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.plan import Plan

Compile = Callable[[str, str], CompiledPolicy]
"""From name and text; raises PolicyError with every fault."""
_MOST = 20_000
"""Texts that are remembered; beyond, all are forgotten and compiled again."""


class CompiledTexts:
    """What texts mean by one ontology."""

    def __init__(self, compile: Compile) -> None:
        self._compile = compile
        self._known: dict[tuple[str, str], CompiledPolicy | PolicyError] = {}

    def know(self, name: str, text: str, compiled: CompiledPolicy) -> None:
        """What somebody compiled before."""
        self._known[name, text] = compiled

    async def prepare(self, texts: Iterable[tuple[str, str]]) -> None:
        """Compiles what is not known, beside the event loop."""
        new = [each for each in dict.fromkeys(texts) if each not in self._known]
        if new:
            await asyncio.to_thread(self._compile_all, new)

    def get(self, name: str, text: str) -> CompiledPolicy:
        """Compiles now unless it is known; raises PolicyError."""
        if (name, text) not in self._known:
            self._compile_all([(name, text)])
        found = self._known[name, text]
        if isinstance(found, PolicyError):
            raise PolicyError(found.problems)
        return found

    def plan(self, name: str, text: str, version: str) -> Plan | None:
        """None when the text does not compile, or gives another version by now: that one runs only
        from the place on where it is on record.
        """
        if self.problems(name, text):
            return None
        plan = self.get(name, text).plan
        return plan if plan.version() == version else None

    def problems(self, name: str, text: str) -> tuple[Problem, ...]:
        """The errors; empty when it compiles."""
        try:
            self.get(name, text)
        except PolicyError as error:
            return tuple(one for one in error.problems if one.severity == "error")
        return ()

    def _compile_all(self, texts: Iterable[tuple[str, str]]) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        for name, text in texts:
            try:
                self._known[name, text] = self._compile(name, text)
            except PolicyError as error:
                self._known[name, text] = error
