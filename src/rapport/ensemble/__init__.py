"""Components that form groups by what they know, and tell each other by gossip. [EN-1, EN-2]"""

from rapport.ensemble.component import Component
from rapport.ensemble.ensemble import Ensemble
from rapport.ensemble.fields import Local
from rapport.ensemble.processes import process
from rapport.ensemble.role import Role
from rapport.ensemble.views import NodeKnowledge

__all__ = ["Component", "Ensemble", "Local", "NodeKnowledge", "Role", "process"]
