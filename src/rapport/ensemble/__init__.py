"""Components that form groups by their knowledge, and exchange it by gossip. [EN-1, EN-2]"""

from rapport.ensemble.model.component import Component, process
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.replicas import NodeKnowledge
from rapport.ensemble.model.role import Local, Role

__all__ = ["Component", "Ensemble", "Local", "NodeKnowledge", "Role", "process"]
