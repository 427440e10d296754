"""prepare → diagnose → propose ─(one task per candidate)→ evaluate → reflect → … → conclude."""

from __future__ import annotations

import sqlite3
from typing import Literal

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from kopt.agent import nodes
from kopt.agent.nodes import Deps
from kopt.agent.state import Attempt, Job, SearchState

RECURSION_LIMIT = 200
"""Steps of one run; three per round. The budget ends a run long before."""

_STATE_TYPES = [
    ("kopt.agent.state", "Attempt"),
    ("kopt.agent.state", "Job"),
    ("kopt.agent.state", "SearchState"),
    ("kopt.tools.models", "RunStatus"),
    ("kopt.tools.models", "VerdictStatus"),
    ("kopt.tools.models", "Provenance"),
]
"""All that a checkpoint may contain; anything else in one is refused when it is read."""


def build_graph() -> StateGraph[SearchState, Deps, SearchState, SearchState]:
    """The loop, not compiled: the caller chooses where checkpoints go."""
    graph: StateGraph[SearchState, Deps, SearchState, SearchState] = StateGraph(
        SearchState, context_schema=Deps
    )
    graph.add_node("prepare", nodes.prepare)
    graph.add_node("diagnose", nodes.diagnose)
    graph.add_node("propose", nodes.propose)
    graph.add_node("evaluate", nodes.evaluate, input_schema=Job)
    graph.add_node("reflect", nodes.reflect)
    graph.add_node("conclude", nodes.conclude)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "diagnose")
    graph.add_conditional_edges("diagnose", after_diagnose)
    graph.add_conditional_edges("propose", after_propose, ["evaluate", "conclude"])
    graph.add_edge("evaluate", "reflect")
    graph.add_conditional_edges("reflect", after_reflect)
    graph.add_edge("conclude", END)
    return graph


def after_diagnose(state: SearchState) -> Literal["propose", "conclude"]:
    """Search only where there is something to gain."""
    return "conclude" if state.stop else "propose"


def after_propose(state: SearchState) -> list[Send] | Literal["conclude"]:
    """One evaluation per proposal."""
    if state.stop or not state.queue:
        return "conclude"
    return [Send("evaluate", job) for job in state.queue]


def after_reflect(state: SearchState) -> Literal["propose", "conclude"]:
    """Go on until something stops the search."""
    return "conclude" if state.stop else "propose"


def checkpointer(connection: sqlite3.Connection) -> SqliteSaver:
    """Checkpoints in the run's own database, restricted to the state's own types."""
    connection.execute("PRAGMA busy_timeout = 10000")
    return SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=_STATE_TYPES))


__all__ = ["RECURSION_LIMIT", "Attempt", "build_graph", "checkpointer"]
