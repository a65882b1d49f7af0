"""What every door is handed: the node it belongs to."""

from __future__ import annotations

from litestar.di import NamedDependency

from rapport.node.node import Node

NodeDependency = NamedDependency[Node]
