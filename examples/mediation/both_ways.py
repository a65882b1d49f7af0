"""Plays an application twice over the same events: converted by hand, and mediated by Rapport.

An application is a folder with `workload.py` (who takes part and what they send), `by_hand/` (one
module per pair, `SENDER_to_RECEIVER.py`) and `declared/` (one file per interpretation). Both hold
a folder for each step, with only the files that differ from `start`.
"""

from __future__ import annotations

import importlib
import json
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import Conversion, functions_of
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.declarations.files import KINDS, read_declarations
from rapport.mediation.declarations.inference import complete_declarations, infer
from rapport.mediation.declarations.python_classes import interpretation_of
from rapport.mediation.interpretations.model import CANONICAL, Direction, Interpretation
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import Declare, apply_change, load_all

STEPS = {
    "start": "as it begins",
    "joined": "a participant joins",
    "changed": "a type changes",
    "added": "a type of events is added",
}
Given = tuple[str, dict[str, Any]]
"""What a participant receives: the type and the event, both its own."""


class Sent(NamedTuple):
    """An event as its sender says it."""

    sender: str
    kind: str
    event: dict[str, Any]
    time_ms: int = 0


class Participant(NamedTuple):
    """Somebody who sends or receives, and the interpretation spoken."""

    name: str
    interpretation: str = CANONICAL
    sends: bool = True
    receives: bool = True


class Application:
    """One application at one step."""

    def __init__(self, folder: Path, step: str) -> None:
        self.folder, self.step = folder, step
        self.workload: Any = Steps(f"example_{folder.name}", [folder]).load("workload")
        self.participants: list[Participant] = self.workload.participants(step)

    def events(self, count: int, seed: int = 1) -> list[Sent]:
        """So many events, the same for the same seed."""
        return list(self.workload.events(self.step, count, seed))

    def pairs(self) -> Iterator[tuple[Participant, Participant]]:
        """Who hears whom; nobody hears their own."""
        for sender in self.participants:
            for receiver in self.participants:
                if sender != receiver and sender.sends and receiver.receives:
                    yield sender, receiver

    def play(self, receive: Callable[[Sent, Participant], Given | None], count: int) -> list[Any]:
        """What every participant got: (receiver, sender, type, event)."""
        hears = [(sender.name, receiver) for sender, receiver in self.pairs()]
        found = []
        for sent in self.events(count):
            for receiver in (each for sender, each in hears if sender == sent.sender):
                given = receive(sent, receiver)
                if given is not None:
                    found.append((receiver.name, sent.sender, *given))
        return found


class ByHand:
    """Every receiver converts what every sender says, by a module of its own."""

    def __init__(self, application: Application) -> None:
        code = _steps(application.folder, "by_hand", application.step)
        self._modules = {
            (sender.name, receiver.name): code.load(f"{sender.name}_to_{receiver.name}").EVENTS
            for sender, receiver in application.pairs()
            if sender.interpretation != receiver.interpretation
        }

    def __call__(self, sent: Sent, receiver: Participant) -> Given | None:
        """The event as the receiver says it; None: it does not know such events."""
        if (sent.sender, receiver.name) not in self._modules:
            return sent.kind, sent.event  # they speak the same way
        convert = self._modules[sent.sender, receiver.name].get(sent.kind)
        return convert(sent.event) if convert is not None else None


class Mediated:
    """Events go from the sender's interpretation to root, and from root to the receiver's."""

    def __init__(self, application: Application) -> None:
        self._code = _steps(application.folder, "declared", application.step)
        self.interpretations = declared(application)
        self._speaks = {each.name: each.interpretation for each in application.participants}
        tables = getattr(application.workload, "tables", None)
        self._surroundings = ConversionEnvironment(tables() if tables else None)
        self._functions = {
            name: self._code.function(name)
            for conversion in _conversions(self.interpretations)
            for name in functions_of(conversion)
        }
        self.transformers: dict[tuple[str, str, Direction], Transformer | None] = {}

    def __call__(self, sent: Sent, receiver: Participant) -> Given | None:
        """The event as the receiver says it; the original if it says it the same way."""
        spoken = self._speaks[sent.sender]
        if spoken == receiver.interpretation:
            return sent.kind, sent.event
        self._surroundings.event_time_ms = sent.time_ms
        to_root = self.transformer(spoken, sent.kind, "in")
        if to_root is None:
            return None
        from_root = self.transformer(receiver.interpretation, to_root.plan.result_type, "out")
        if from_root is None:
            return None
        return from_root.plan.result_type, from_root(to_root(sent.event))

    def transformer(self, name: str, kind: str, direction: Direction) -> Transformer | None:
        """Made once; None: the interpretation does not know such events."""
        asked = (name, kind, direction)
        if asked not in self.transformers:
            self.transformers[asked] = self._made(name, kind, direction)
        return self.transformers[asked]

    def _made(self, name: str, kind: str, direction: Direction) -> Transformer | None:
        try:
            return make_transformer(
                self.interpretations,
                name,
                kind,
                direction,
                self._functions,
                surroundings=self._surroundings,
            )
        except InterpretationError as error:
            if any(each.code != "mapping.missing" for each in error.problems):
                raise
            return None


def declared(application: Application) -> InterpretationRegistry:
    """The interpretations in force at a step; raises InterpretationError with every fault."""
    code = _steps(application.folder, "declared", application.step)
    root = _read(code, "root", None)
    held, found = load_all([root])
    _refuse(found[CANONICAL][1])
    for name in sorted({each.interpretation for each in application.participants} - {CANONICAL}):
        held, problems = apply_change(held, Declare(_read(code, name, root)))
        _refuse(problems)
    for change in code.load("changes").CHANGES if code.has("changes.py") else ():
        held, problems = apply_change(held, change)
        _refuse(problems)
    return held


def _conversions(interpretations: InterpretationRegistry) -> Iterator[Conversion]:
    """All that are declared, and those that lead from a replaced type to the new one and back."""
    for name in interpretations.names:
        yield from interpretations.named(name).conversions
    for replacement in interpretations.replacements:
        yield from (replacement.forth, replacement.back)


def _read(code: Steps, name: str, root: Interpretation | None) -> Interpretation:
    """One interpretation from its file, or from the annotations of its module."""
    path = code.file(name)
    if path.suffix == ".py":
        said = interpretation_of(code.load(name), name)
        if root is None:
            return said
        inferred = infer(said, root)
        _refuse([problem for _about, problem in inferred.problems])
        return inferred.interpretation
    known = [each.name for each in root.types] if root else None
    found = read_declarations(path.name, path.read_bytes(), KINDS[path.suffix], known=known)
    if root is not None:
        found = complete_declarations(found, root)
    _refuse(found.problems)
    return found.interpretations[name]


def _refuse(problems: Any) -> None:
    errors: list[Problem] = [each for each in problems if each.severity == "error"]
    if errors:
        raise InterpretationError(errors)


class Steps:
    """Folders of which the first that has a file counts; modules in them are one package."""

    def __init__(self, package: str, folders: list[Path]) -> None:
        self._package, self.folders = package, folders
        module = ModuleType(package)
        module.__path__ = [str(folder) for folder in folders]
        sys.modules.setdefault(package, module)

    def load(self, name: str) -> Any:
        """A module of the package."""
        return importlib.import_module(f"{self._package}.{name}")

    def has(self, file: str) -> bool:
        """One of the folders has it."""
        return any((folder / file).exists() for folder in self.folders)

    def file(self, stem: str) -> Path:
        """The file of that name, whatever its ending."""
        return next(path for folder in self.folders for path in sorted(folder.glob(f"{stem}.*")))

    def function(self, address: str) -> Callable[..., Any]:
        """`module:function`, of a module in these folders."""
        module, _, name = address.partition(":")
        short = module.removeprefix(f"{self._package}.")
        found: Callable[..., Any] = operator.attrgetter(name)(self.load(short))
        return found


def _steps(folder: Path, side: str, step: str) -> Steps:
    folders = [folder / side / each for each in dict.fromkeys((step, "start"))]
    return Steps(f"example_{folder.name}_{side}_{step}", folders)


def is_same(one: Any, other: Any) -> bool:
    """Equal, numbers to nine digits: what is converted once by hand goes by root when mediated."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return bool(abs(one - other) <= 1e-9 * max(1.0, abs(one), abs(other)))
    return bool(one == other)


def show(folder: Path, count: int = 1_000) -> int:
    """Plays all steps both ways and prints what came of it; 1: the two differ."""
    differing = 0
    for step, about in STEPS.items():
        application = Application(folder, step)
        mediated = application.play(Mediated(application), count)
        by_hand = application.play(ByHand(application), count)
        wrong = len(mediated) - sum(map(is_same, mediated, by_hand))
        wrong += abs(len(mediated) - len(by_hand))
        differing += wrong
        print(f"{folder.name}, {about}: {count} events sent, {len(mediated)} received, ", end="")
        print("both ways give the same" if not wrong else f"{wrong} DIFFER")
        received = Counter(f"{each[0]} from {each[1]}" for each in mediated)
        print("  " + ", ".join(f"{who}: {number}" for who, number in sorted(received.items())))
    _show_example(application, Mediated(application))
    return 1 if differing else 0


def _show_example(application: Application, mediated: Mediated) -> None:
    """The first event that somebody hears otherwise than it was said."""
    hears = [(sender.name, receiver) for sender, receiver in application.pairs()]
    for sent in application.events(100):
        for receiver in (each for sender, each in hears if sender == sent.sender):
            given = mediated(sent, receiver)
            if given is not None and given[1] != sent.event:
                print(f"For example {sent.sender} says {sent.kind} {_shown(sent.event)}")
                print(f"    and {receiver.name} hears {given[0]} {_shown(given[1])}")
                return


def _shown(event: dict[str, Any]) -> str:
    text = json.dumps(event, ensure_ascii=False)
    return text if len(text) <= 320 else f"{text[:320]} ..."
