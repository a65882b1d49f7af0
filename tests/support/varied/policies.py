"""Random policies over random sites, as text: every kind of child in every place. [PO-3, PO-7]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rapport.policy.ontology import Ontology
from support.varied.sites import KINDS, SPANS_MS, STATES, Draws

_CONCEPTS = {"S": "station", "T": "station", "A": "person", "B": "person", "R": "room", "Q": "room"}
_WORDS = {
    ">": (">", "above", "over", "is above", "is >"),
    "<": ("<", "below", "under", "is below"),
    ">=": (">=", "at least", "is at least"),
    "<=": ("<=", "at most", "is at most"),
    "=": ("=", "is", "equals"),
    "!=": ("!=", "is not", "is !="),
}


class Part(NamedTuple):
    """Something that can be said in one line."""

    text: str
    negative: str
    """The same negated; empty where that cannot be said."""
    aliases: frozenset[str]
    is_fact: bool = False


class Phrases:
    """What can be said about one site."""

    def __init__(self, draws: Draws, ontology: Ontology) -> None:
        self._draws, self._ontology = draws, ontology
        self._streams = set(ontology.streams())
        self._degrees = bool(ontology.units["station"])

    def policy(self) -> str:
        """A whole policy; it may be one that the compiler refuses, though mostly it is not."""
        draws = self._draws
        lines = [self._opening()] + [self._line() for _ in range(draws.choice((0, 1, 1, 2)))]
        if draws.randint(0, 19) == 0:  # nothing opens the absence beside it
            lines = [f"{self._opening()} OR {self._any()}"]
        conditions = [*draws.sample(lines, len(lines)), *self._options()]
        concepts = [
            f"{concept} {alias}{self._properties(alias)}" for alias, concept in _CONCEPTS.items()
        ]
        return (
            "concepts\n"
            + "".join(f"  {line}\n" for line in concepts)
            + "conditions\n"
            + "".join(f"  {line}\n" for line in conditions)
            + "actions\n  look\n"
        )

    # Single parts.

    def relation(self, aliases: Sequence[str] = ()) -> Part:
        """A relationship or a comparison, of these aliases only where any are given."""
        while True:
            part = self._draws.choice((self._relationship, self._comparison))()
            if not aliases or part.aliases <= set(aliases):
                return part

    def _relationship(self) -> Part:
        draws = self._draws
        first, name, second = draws.choice(
            (
                ("A", "inside", "R"),
                ("A", "inside", "Q"),
                ("B", "inside", "R"),
                ("A", "near {}m of", "B"),
                ("B", "beside {}m of", "S"),
                ("A", "beside {}m of", "T"),
                ("S", "stands", "R"),
                ("R", "leads", "Q"),
                ("S", "resembles", "T"),
            )
        )
        name = name.format(draws.randint(0, 3))
        events = {
            "inside": True,
            "near": True,
            "beside": True,
            "stands": self._is_given("S", "place") or self._is_given("R", "area"),
            "leads": self._is_given("R", "area"),
            "resembles": self._is_given("S", "state"),
        }[name.split()[0]]
        aliases = frozenset((first, second))
        return Part(
            f"{first} is {name} {second}", f"{first} is not {name} {second}", aliases, not events
        )

    def _comparison(self) -> Part:
        draws = self._draws
        left, right, aliases, ends = draws.choice(
            (
                ("temperature of S", self._degree(), "S", "S.temperature"),
                ("temperature of T", self._degree(), "T", "T.temperature"),
                ("temperature of S", "limit of S", "S", "S.temperature"),
                ("temperature of S", "limit of T", "ST", "S.temperature"),
                ("temperature of S", "limit of R", "SR", "S.temperature"),
                ("temperature of S", "dewpoint of S", "S", "S.temperature"),
                ("temperature of S", "temperature of T", "ST", "S.temperature"),
                ("dewpoint of S", self._degree(), "S", "S.dewpoint"),
                ("limit of S", self._degree(), "S", ""),
                ("limit of S", "limit of R", "SR", ""),
                ("limit of S", "limit of T", "ST", ""),
                ("twice(S)", str(draws.randint(0, 8)), "S", "S.temperature"),
                ("twice(S)", "twice(T)", "ST", "S.temperature"),
                ("spread(S, S)", str(draws.randint(0, 3)), "S", "S.temperature"),
                ("spread(S, T)", str(draws.randint(0, 3)), "ST", "S.temperature"),
                ("spread(S, T)", "rating(T)", "ST", "S.temperature"),
                ("rating(S)", str(draws.randint(0, 4)), "S", ""),
                ("twice(S)", "rating(S)", "S", "S.temperature"),
                ("distance(A, B)", f"{draws.randint(0, 3)} m", "AB", "A.position"),
                ("distance(A, B)", "minimumDistance(A, B)", "AB", "A.position"),
                ("minimumDistance(A, B)", f"{draws.randint(0, 3)}00 cm", "AB", ""),
                ("apart(A, S)", f"{draws.randint(0, 3)} m", "AS", "A.position"),
            )
        )
        if draws.randint(0, 4) == 0:
            return self._of_texts()
        if draws.randint(0, 3) == 0:
            left, right = right, left
        operator = draws.choice(tuple(_WORDS))
        return self._compared(left, operator, right, aliases, not ends or not self._gives(ends))

    def _of_texts(self) -> Part:
        draws = self._draws
        left, right, aliases, ends = draws.choice(
            (
                ("state of S", f"'{draws.choice(STATES)}'", "S", "S.state"),
                ("state of S", "state of T", "ST", "S.state"),
                ("kind of S", "state of S", "S", "S.state"),
                ("kind of S", _quoted(draws.choice(KINDS)), "S", ""),
                ("armed of S", draws.choice(("true", "false")), "S", ""),
                ("armed of S", "armed of T", "ST", ""),
                ("alarm of S", draws.choice(("true", "false")), "S", "S.alarm"),
                ("alarm of S", "armed of S", "S", "S.alarm"),
            )
        )
        operator = draws.choice(("=", "!="))
        return self._compared(left, operator, right, aliases, not ends or not self._gives(ends))

    def _compared(self, left: str, operator: str, right: str, aliases: str, is_fact: bool) -> Part:
        word = self._draws.choice(_WORDS[operator])
        text = f"{left} {word} {right}"
        return Part(text, f"NOT {text}", frozenset(aliases), is_fact)

    def _degree(self) -> str:
        number = self._draws.randint(-1, 4)
        if not self._degrees:
            return str(number)
        return self._draws.choice((f"{number} degC", f"{number + 273.15} K"))

    def lasting(self) -> str:
        """`C for D` over one or two aliases."""
        draws = self._draws
        aliases = draws.choice(("S", "ST", "AB", "AR", "SR", "AS"))
        parts = [self._of_events(aliases)]
        parts += [self.relation(aliases) for _ in range(draws.choice((0, 0, 1, 1, 2)))]
        texts = [self._either(part) for part in draws.sample(parts, len(parts))]
        joined = f" {draws.choice(('AND', 'OR'))} ".join(texts)
        if len(texts) == 3 and draws.randint(0, 1):
            joined = f"({texts[0]} OR {texts[1]}) AND {texts[2]}"
        alone = len(texts) == 1 and not joined.startswith("NOT") and draws.randint(0, 2) > 0
        inner = joined if alone else f"({joined})"
        return f"{inner} for {self._span()}"

    def silent(self) -> str:
        """`no X of S for D`."""
        draws = self._draws
        given = ["event of S", "event of A", "temperature of S", "position of A", "position of B"]
        given += [f"{name} of S" for name in ("dewpoint", "state") if self._is_given("S", name)]
        return f"no {draws.choice(given)} for {self._span()}"

    def _of_events(self, aliases: Sequence[str] = ()) -> Part:
        while True:
            part = self.relation(aliases)
            if not part.is_fact:
                return part

    def _either(self, part: Part) -> str:
        return part.negative if self._draws.randint(0, 2) == 0 else part.text

    # Lines.

    def _opening(self) -> str:
        """Something that happens, so that absence has what opens it."""
        kind = self._draws.randint(0, 5)
        if kind == 0:
            return self.lasting()
        if kind == 1:
            return self.silent()
        return self._of_events().text

    def _happening(self) -> str:
        """A part with events, perhaps negated."""
        kind = self._draws.randint(0, 7)
        if kind == 0:
            return self.lasting()
        if kind == 1:
            return self.silent()
        return self._either(self._of_events())

    def _any(self) -> str:
        """Anything that can stand in a clause."""
        if self._draws.randint(0, 3) == 0:
            return self._either(self._fact())
        return self._happening()

    def _fact(self) -> Part:
        while True:
            part = self.relation()
            if part.is_fact:
                return part

    def _absent_pair(self) -> str:
        first, second = self._of_events(), self._of_events()
        return f"{first.negative} FOLLOWED-BY {second.negative}"

    def _line(self) -> str:
        draws = self._draws
        return draws.choice(
            (
                self._single,
                self._single,
                self._alternatives,
                self._alternatives,
                self._sequence,
                self._sequence,
                self._sequence_of_several,
                self._chain,
                self._sequence_or_other,
                self._undone_together,
            )
        )()

    def _single(self) -> str:
        part, within = self._any(), self._within()
        return f"({part}){within}" if within else part

    def _alternatives(self) -> str:
        draws, within = self._draws, self._within()
        line = f"{self._any()} OR {self._any()}"
        if draws.randint(0, 3) == 0:
            line = f"({self._any()} AND {self._any()}) OR {self._any()}"
        return f"({line}){within}" if within else line

    def _sequence(self) -> str:
        if self._draws.randint(0, 5) == 0:
            return self._absent_pair() + self._within()
        return f"{self._happening()} FOLLOWED-BY {self._happening()}{self._within()}"

    def _sequence_of_several(self) -> str:
        joining = self._draws.choice(("AND", "OR"))
        joined = f"({self._happening()} {joining} {self._happening()})"
        sides = self._draws.sample([joined, self._happening()], 2)
        return " FOLLOWED-BY ".join(sides) + self._within()

    def _chain(self) -> str:
        first, second = self._sequence(), self._happening()
        opened = f"({first})" if self._draws.randint(0, 1) else first
        return f"{opened} FOLLOWED-BY {second}{self._within()}"

    def _sequence_or_other(self) -> str:
        return " OR ".join(self._draws.sample([f"({self._sequence()})", self._any()], 2))

    def _undone_together(self) -> str:
        """Two that must not follow, or precede, the same thing."""
        same, follows = self._of_events().text, self._draws.randint(0, 1)
        pairs = []
        for _ in range(2):
            other = self._of_events().negative
            sides = (same, other) if follows else (other, same)
            pairs.append(f"({' FOLLOWED-BY '.join(sides)}{self._within()})")
        return " OR ".join(pairs)

    def _within(self) -> str:
        return f" within {self._span()}" if self._draws.randint(0, 2) == 0 else ""

    def _options(self) -> list[str]:
        draws = self._draws
        found = []
        for line, chance in (
            (f"within {self._span()}", 4),
            ("consume recent", 4),
            ("distinct S, T", 6),
            ("distinct A, B", 6),
            ("when unsure fire", 6),
            (f"at most once per {self._span()}", 3),
        ):
            if draws.randint(1, chance) == 1:
                found.append(line)
        return found

    def _properties(self, alias: str) -> str:
        draws = self._draws
        known = {
            "S": ("armed=true", "limit>1", "kind!='mast'", "kind='o''k'"),
            "T": ("limit<=3", "armed!=true"),
            "A": ("status='guest'",),
            "B": ("status!='guest'",),
            "R": ("security='guest'", "limit>=1"),
            "Q": ("security!='staff'",),
        }[alias]
        return f" ({draws.choice(known)})" if draws.randint(0, 6) == 0 else ""

    def _span(self) -> str:
        return f"{self._draws.choice(SPANS_MS)} ms"

    def _is_given(self, alias: str, attribute: str) -> bool:
        return f"{_CONCEPTS[alias]}.{attribute}" in self._streams

    def _gives(self, end: str) -> bool:
        alias, _, attribute = end.partition(".")
        return self._is_given(alias, attribute)


def varied_policy(draws: Draws, ontology: Ontology) -> str:
    """The text of a policy over the site."""
    return Phrases(draws, ontology).policy()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
