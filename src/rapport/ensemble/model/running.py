"""Which calls run, which of them hang, and how often one was made again. [EN-1]"""

from __future__ import annotations

from rapport.ensemble.model.calls import Call
from rapport.ensemble.model.faults import Fault
from rapport.kernel.clock import Now

Key = tuple[str, str]


class Running:
    """The calls that were given out and did not come back; at most one of a kind."""

    def __init__(self, process_ms: int) -> None:
        self._process_ms = process_ms
        self._calls: dict[Key, Call] = {}
        self._hanging: set[Key] = set()
        self._retries: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> None:
        """It is given out."""
        self._calls[(call.component, call.name)] = call

    def end(self, call: Call) -> bool:
        """It came back; False: too late, or nobody waits for it any more."""
        key = (call.component, call.name)
        if self._calls.get(key) is not call:
            return False
        del self._calls[key]
        if key in self._hanging:
            self._hanging.discard(key)
            return False
        return True

    def hanging(self, now: Now) -> list[Fault]:
        """A fault for each that hangs since the last time."""
        faults = []
        for key, call in self._calls.items():
            if key not in self._hanging and self._due_ms(call) <= now.steady_ms:
                self._hanging.add(key)
                faults.append(_hangs(call, self._process_ms))
        return faults

    def next_due_ms(self) -> float | None:
        """When the next may hang."""
        return min(
            (self._due_ms(call) for key, call in self._calls.items() if key not in self._hanging),
            default=None,
        )

    def may_retry(self, call: Call, most: int) -> bool:
        """Whether it is to be made once more; counts."""
        key = (call.component, call.name)
        self._retries[key] = self._retries.get(key, 0) + 1
        if self._retries[key] <= most:
            return True
        del self._retries[key]
        return False

    def settled(self, call: Call) -> None:
        """What it found was taken."""
        self._retries.pop((call.component, call.name), None)

    def forget(self, component: str) -> None:
        """The component is gone."""
        for key in [key for key in self._calls if key[0] == component]:
            del self._calls[key]
            self._hanging.discard(key)
        for key in [key for key in self._retries if key[0] == component]:
            del self._retries[key]

    def _due_ms(self, call: Call) -> float:
        return call.now.steady_ms + self._process_ms


def _hangs(call: Call, process_ms: int) -> Fault:
    what = "process" if call.component else "evaluation"
    return Fault(
        code="ensemble.hangs",
        message=f"the {what} {call.name} did not end within {process_ms} ms",
        hint="is it waiting for something? it is not started again before it ends",
        component=call.component,
        name=call.name,
    )
