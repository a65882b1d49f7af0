"""Components that form groups by what they know, and tell each other by gossip. [EN-1, EN-2]"""

from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.fields import Local
from rapport.ensemble.model.processes import process
from rapport.ensemble.model.role import Role
from rapport.ensemble.model.views import NodeKnowledge

__all__ = ["Component", "Ensemble", "Local", "NodeKnowledge", "Role", "process"]
