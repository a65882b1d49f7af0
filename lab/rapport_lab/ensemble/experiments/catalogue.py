"""All experiments by name. [EN-12]"""

from __future__ import annotations

from typing import Final

from rapport_lab.ensemble.experiments.broadcasts import BROADCASTS
from rapport_lab.ensemble.experiments.experiment import Experiment
from rapport_lab.ensemble.experiments.groupers import GROUPERS
from rapport_lab.ensemble.experiments.membership import MEMBERSHIP
from rapport_lab.ensemble.experiments.pulling import PULLING
from rapport_lab.ensemble.experiments.rumours import RUMOURS
from rapport_lab.ensemble.experiments.scenario import SCENARIO
from rapport_lab.ensemble.experiments.strategies import STRATEGIES

EXPERIMENTS: Final[dict[str, Experiment]] = {
    one.name: one
    for one in (SCENARIO, RUMOURS, MEMBERSHIP, BROADCASTS, STRATEGIES, GROUPERS, PULLING)
}
"""In the order in which all are run: the short ones first."""
