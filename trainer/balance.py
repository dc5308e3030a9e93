"""Balance: what every lane and every rank gave to the steps of a period, and how unequal that was.

A step takes as long as its slowest rank, so ranks whose padded tokens differ waste the others' time. The skew is the
largest share over the mean one: 1 where all are equal, N where one of N has everything. It is taken over a period
and not over a step: short ones are uneven by chance. Cost: a few additions a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.trainer.progress import RankReport


@dataclass(slots=True)
class Amounts:
    """Sums over a period."""

    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    wait_s: float = 0.0  # of a rank

    def add(self, rows: int, tokens: int, padded_tokens: int) -> None:
        self.rows += rows
        self.tokens += tokens
        self.padded_tokens += padded_tokens

    @property
    def padding(self) -> float:
        """Share of the padded tokens that is padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(slots=True)
class Balance:
    """A period: the steps since the last `clear`."""

    lanes: dict[int, Amounts] = field(default_factory=dict)
    ranks: dict[int, Amounts] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0

    def add(self, reports: Sequence[RankReport], step_s: float | None) -> None:
        """A step: the report of every rank, in their order."""
        self.steps += 1
        self.seconds += step_s or 0.0
        for rank, report in enumerate(reports):
            own = self.ranks.setdefault(rank, Amounts())
            own.add(report.rows, report.tokens, report.padded_tokens)
            own.wait_s += report.wait_s
            for lane, amounts in report.lanes.items():
                self.lanes.setdefault(int(lane), Amounts()).add(*amounts)

    def clear(self) -> None:
        self.lanes, self.ranks, self.steps, self.seconds = {}, {}, 0, 0.0

    def wait_share(self) -> float | None:
        """Share of the period that the rank that waited longest spent waiting for data."""
        longest = max((rank.wait_s for rank in self.ranks.values()), default=0.0)
        return min(1.0, longest / self.seconds) if self.seconds else None

    def event(self) -> dict[str, Any]:
        """For the parent: metrics take the numbers, the log takes `text`."""
        return {
            "event": "balance",
            "lanes": {lane: _json(amounts) for lane, amounts in sorted(self.lanes.items())},
            "ranks": {rank: _json(amounts) for rank, amounts in sorted(self.ranks.items())},
            "lane_skew": skew(self.lanes),
            "rank_skew": skew(self.ranks),
            "wait_share": self.wait_share(),
            "text": self.text(),
        }

    def text(self) -> str:
        parts = [f"balance over {self.steps} step{'s' if self.steps > 1 else ''}"]
        for name, of in (("lane", self.lanes), ("rank", self.ranks)):
            shares = ", ".join(
                f"{number}: {each.rows} rows {each.tokens} tokens {100 * each.padding:.0f} % padding"
                for number, each in sorted(of.items())
            )
            parts.append(f"{name} {shares}")
        share = self.wait_share()
        if share is not None:
            parts.append(f"{100 * share:.0f} % of the time spent waiting for data")
        return "; ".join(parts)

    def warnings(self, limit: float) -> list[str]:
        """One for lanes and one for ranks whose skew is above `limit`."""
        found = []
        for name, of, what in (
            (
                "lane",
                self.lanes,
                "steps are smaller than they could be: few token batches, or another program writes some",
            ),
            ("rank", self.ranks, "the others wait for it: use a number of ranks that divides tokens.lanes"),
        ):
            worst = skew(of)
            if worst is not None and worst > limit:
                most = max(of, key=lambda number: of[number].padded_tokens)
                found.append(
                    f"{name} {most} has {worst:.2f} times the mean of the {name}s' tokens over {self.steps} steps "
                    f"(train.skew_warning is {limit:g}): {what}"
                )
        return found


def skew(amounts: Mapping[int, Amounts]) -> float | None:
    """Largest over mean of the padded tokens; None where there is nothing to compare."""
    padded = [each.padded_tokens for each in amounts.values()]
    total = sum(padded)
    return max(padded) * len(padded) / total if len(padded) > 1 and total else None


def _json(amounts: Amounts) -> dict[str, Any]:
    return {
        "rows": amounts.rows,
        "tokens": amounts.tokens,
        "padded_tokens": amounts.padded_tokens,
        "wait_s": round(amounts.wait_s, 3),
    }
