"""The site of the worked situations, and a policy of a freezer."""

from __future__ import annotations

from pathlib import Path

SITUATIONS = Path(__file__).parents[2] / "data" / "situations"
FREEZER = """concepts
  station F
situation
  temperature of F above -15 degC OR no temperature of F for 30 min
cleared by
  temperature of F below -17 degC
actions
  tell the guards
actions when cleared
  all is well
"""
