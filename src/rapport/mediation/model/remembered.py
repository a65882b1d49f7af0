"""A map that knows which of its keys changed, so that saving it costs what changed. [ME-4]"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, overload

_NOTHING = object()


class Remembered(dict[str, Any]):
    """A dict of JSON whose changes are noted, in the order in which keys were last changed.

    Values are changed by assigning them anew: what is changed inside of one is not seen.
    """

    def __init__(self, given: Mapping[str, Any] | None = None, *, is_saved: bool = False) -> None:
        super().__init__(given or {})
        self._changed: dict[str, None] = {} if is_saved else dict.fromkeys(self)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.note(key)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.note(key)

    @overload
    def pop(self, key: str) -> Any: ...
    @overload
    def pop(self, key: str, default: Any) -> Any: ...
    def pop(self, key: str, default: Any = _NOTHING) -> Any:
        """As of any dict."""
        if key in self:
            self.note(key)
            return super().pop(key)
        if default is _NOTHING:
            raise KeyError(key)
        return default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As of any dict."""
        if key not in self:
            self[key] = default
        return self[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered:
        return Remembered({key: deepcopy(value, memo) for key, value in self.items()})

    def note(self, key: str) -> None:
        """The key is to be saved, or forgotten where it is saved."""
        self._changed.pop(key, None)
        self._changed[key] = None

    def take_changed(self) -> list[str]:
        """The keys that changed since they were last taken; one that is gone is among them."""
        changed, self._changed = self._changed, {}
        return list(changed)
