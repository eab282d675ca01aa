"""Graphs of operations, their fusion, and lowering to the native plan."""

from __future__ import annotations

from plait.plan.graph import Graph, Node, Rope, Shape
from plait.plan.passes import fuse

__all__ = ["Graph", "Node", "Rope", "Shape", "fuse"]
