"""The situations that are open, as far as their beginnings and ends were emitted; and the ends that
no reading brings about. [SI-5, SI-14]

Pure and part of what the engine commits, so that a second pass over the stream gives the same ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.core.detection import Detection, identity_order

BindingsKey = tuple[tuple[str, str], ...]


class OpenSituation(msgspec.Struct, frozen=True):
    """One open situation."""

    policy: str
    version: str
    """The version that began it."""
    bindings: dict[str, str]
    began: int
    detection: str
    """Id of the event of the beginning."""


def bindings_key(bindings: Mapping[str, str]) -> BindingsKey:
    """Bindings as they are compared."""
    return tuple(sorted(bindings.items()))


class OpenSituations:
    """Open situations by policy and bindings."""

    def __init__(self, found: Iterable[OpenSituation] = ()) -> None:
        self._open: dict[str, dict[BindingsKey, OpenSituation]] = {}
        for each in found:
            self._open.setdefault(each.policy, {})[bindings_key(each.bindings)] = each

    def continued(self, found: Sequence[Detection], situations: Container[str]) -> list[Detection]:
        """What is new: a situation that is open already does not begin a second time, and its end
        names the beginning that was emitted. That is so after a version was replaced, or policies
        began anew because the clock jumped.
        """
        if not any(each.policy in situations for each in found):
            return list(found)
        began: dict[tuple[str, BindingsKey], int | None] = {}
        new: list[Detection] = []
        for each in found:
            if each.policy not in situations:
                new.append(each)
                continue
            key = bindings_key(each.bindings)
            known = self._open.get(each.policy, {}).get(key)
            since = began.get((each.policy, key), None if known is None else known.began)
            is_begin = each.began is None
            if is_begin is (since is not None):
                continue
            began[each.policy, key] = each.time if is_begin else None
            new.append(each if is_begin else msgspec.structs.replace(each, began=since))
        return new

    def note(self, found: Iterable[Detection], situations: Container[str]) -> None:
        """Notes the beginnings and ends of policies with a situation."""
        for each in found:
            own = self._open.setdefault(each.policy, {})
            key = bindings_key(each.bindings)
            if each.began is not None:
                own.pop(key, None)
            elif each.policy in situations:
                own[key] = OpenSituation(
                    each.policy, each.version, each.bindings, each.time, each.id()
                )

    def of(self, policy: str) -> list[OpenSituation]:
        """The open situations of a policy, in the order of their identities."""
        own = self._open.get(policy, {}).values()
        return sorted(own, key=lambda each: _order(each.bindings))

    def find(self, policy: str, bindings: Mapping[str, str]) -> OpenSituation | None:
        """The open situation of these bindings, or None."""
        return self._open.get(policy, {}).get(bindings_key(bindings))

    def count(self) -> dict[str, int]:
        """Open situations by policy."""
        return {policy: len(own) for policy, own in self._open.items() if own}

    def end(self, policy: str, version: str, reason: str, time: int) -> list[Detection]:
        """Ends all situations of a policy that does not run any more; `version` is the one that ran
        last.
        """
        ended = self.of(policy)
        self._open.pop(policy, None)
        return [
            Detection(
                policy=policy,
                version=version or each.version,
                time=max(time, each.began + 1),
                bindings=each.bindings,
                causes=(),
                began=each.began,
                reason=reason,
            )
            for each in ended
        ]

    def state(self) -> list[OpenSituation]:
        """All open situations, in a fixed order."""
        return [each for policy in sorted(self._open) for each in self.of(policy)]

    def __iter__(self) -> Iterator[OpenSituation]:
        return iter(self.state())


def _order(bindings: Mapping[str, str]) -> list[tuple[str, tuple[int, int, str]]]:
    return [(alias, identity_order(identity)) for alias, identity in sorted(bindings.items())]
