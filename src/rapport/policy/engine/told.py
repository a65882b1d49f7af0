"""What is told of what was found, when detections may stop policies. Pure. [PO-7, PO-10]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.core.detection import Detection, SkippedAction, Undecided
from rapport.policy.engine.places import PlanSource, PolicyCommand


class EmittedResults:
    """The detections and doubts that are told, and the commands among the detections.

    Costs one look-up per detection. What a policy finds after a detection that stopped it (in the
    order of detections) is left out, so how the stream was cut does not matter.
    """

    def __init__(
        self, source: PlanSource, found: Sequence[Detection], undecided: Sequence[Undecided]
    ) -> None:
        self.commands: list[PolicyCommand] = []
        self.skipped: list[SkippedAction] = []
        self.detections: list[Detection] = []
        stopped: dict[str, int] = {}
        for detection in found:
            if detection.policy in stopped:
                continue
            self.detections.append(detection)
            for command in source.commands_of(detection):
                if command.skipped is not None:
                    self.skipped.append(command.skipped)
                    continue
                self.commands.append(command)
                stopped.setdefault(command.policy, detection.time)
        self.undecided = [
            unsure
            for unsure in undecided
            if unsure.policy not in stopped or unsure.time <= stopped[unsure.policy]
        ]
