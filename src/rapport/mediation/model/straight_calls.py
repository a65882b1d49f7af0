"""What the text of a straight way calls: steps of a plan as functions on plain values, and
conversions. [ME-8]
"""

from __future__ import annotations

from typing import Any

from rapport.mediation.model import runtime
from rapport.mediation.model.conversions import Call, Chain, Conversion, Stateful
from rapport.mediation.model.feeding import remembers
from rapport.mediation.model.generator import Writer
from rapport.mediation.model.memory import Memory
from rapport.mediation.model.plan import Step
from rapport.mediation.model.runtime import callable_of
from rapport.mediation.model.straight_forms import NotStraightError
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.types import Types
from rapport.mediation.rejection import Rejected

_NAMES = ("number", "finite", "an_object", "a_list", "missing", "null", "unknown_type")


class Calls:
    """Functions by the names that the text has for them.

    Only what may be done twice: an event that turns out to be unusual is done again, in the plain
    way. So functions of the site and conversions that remember raise NotStraightError.
    """

    def __init__(self, surroundings: Surroundings | None = None) -> None:
        self._surroundings = surroundings or Surroundings()
        self.names: dict[str, Any] = {"number": runtime.number}

    @property
    def are_none(self) -> bool:
        """Whether the text says everything itself: nothing can ask what time it is."""
        return len(self.names) == 1

    def step(self, step: Step, types: Types) -> str:
        """A step as the transformer does it, with text of its own; what it is given is used up."""
        writer = Writer(own=True)
        about = writer.function(step, "part")
        names: dict[str, Any] = {name: getattr(runtime, name) for name in _NAMES}
        names["Rejected"] = Rejected
        for number, conversion in enumerate(writer.conversions):
            names[f"convert_{number}"] = self._callable(conversion, types)
        exec(compile("\n".join(writer.lines), "<straight step>", "exec"), names)
        return self._called("part", names[about])

    def conversion(self, conversion: Conversion, types: Types) -> str:
        """A conversion by itself."""
        return self._called("convert", self._callable(conversion, types))

    def _callable(self, conversion: Conversion, types: Types) -> Any:
        if not _may_be_done_twice(conversion):
            raise NotStraightError
        return callable_of(conversion, {}, Memory(), types, self._surroundings)

    def _called(self, about: str, function: Any) -> str:
        name = f"{about}_{len(self.names)}"
        self.names[name] = function
        return name


def _may_be_done_twice(conversion: Conversion) -> bool:
    how = conversion.how
    if isinstance(how, Chain):
        return all(map(_may_be_done_twice, how.steps))
    return not isinstance(how, (Call, Stateful)) and not remembers(conversion)
