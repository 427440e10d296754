"""What a run may still spend, asked before each spend."""

from __future__ import annotations

import time
from collections.abc import Callable

from kopt.tools.models import Budget, Spent


class Meter:
    """One run's budget. Wall time counts across resumes: `spent` is what earlier ones used.

    `reserve_s` is kept back for judging the winner in full; it grows with the longest evaluation
    seen.
    """

    def __init__(
        self, budget: Budget, spent: Spent, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = budget
        self._spent = spent
        self._clock = clock
        self._start = clock()
        self._longest_s = 0.0

    @property
    def spent(self) -> Spent:
        """Everything so far, this session's wall time included."""
        wall = self._spent.wall_s + self._clock() - self._start
        return self._spent.model_copy(update={"wall_s": wall})

    @property
    def reserve_s(self) -> float:
        """Wall time that the search leaves for the final judgement."""
        if self.budget.wall_s is None:
            return 0.0
        return min(max(0.1 * self.budget.wall_s, 3.0 * self._longest_s), 0.5 * self.budget.wall_s)

    def charge(
        self, *, candidates: int = 0, iterations: int = 0, tokens: int = 0, dollars: float = 0.0
    ) -> None:
        """Record what was spent; wall time counts by itself."""
        now = self._spent
        self._spent = now.model_copy(
            update={
                "candidates": now.candidates + candidates,
                "iterations": now.iterations + iterations,
                "tokens": now.tokens + tokens,
                "dollars": now.dollars + dollars,
            }
        )

    def continue_from(self, iterations: int) -> None:
        """Count the rounds that a checkpoint knows; one that was cut off is asked again."""
        self._spent = self._spent.model_copy(update={"iterations": iterations})

    def saw_evaluation(self, seconds: float) -> None:
        """Learn how long an evaluation may take."""
        self._longest_s = max(self._longest_s, seconds)

    def exhausted(self, share: float = 1.0) -> str | None:
        """Why nothing more may be searched, in words; None while there is budget.

        `share` is the part of the wall time that is asked about.
        """
        budget, spent = self.budget, self.spent
        if budget.wall_s is not None and spent.wall_s >= share * (budget.wall_s - self.reserve_s):
            return f"the wall budget of {budget.wall_s:g} s is used up"
        if budget.candidates is not None and spent.candidates >= budget.candidates:
            return f"the budget of {budget.candidates} candidates is used up"
        if budget.iterations is not None and spent.iterations >= budget.iterations:
            return f"the budget of {budget.iterations} iterations is used up"
        if budget.tokens is not None and spent.tokens >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is used up"
        if budget.dollars is not None and spent.dollars >= budget.dollars:
            return f"the budget of {budget.dollars:g} dollars is used up"
        return None

    def out_of_time(self) -> bool:
        """Whether even the reserve is used up."""
        return self.budget.wall_s is not None and self.spent.wall_s >= self.budget.wall_s
