"""How good a judge is: its verdicts on labelled pairs and labelled answers, by agreed definitions.

A verdict on a pair is 1 where the answer that the judge read first is better, 0 where the other one is, 0.5 for a tie,
and None where there is none. A pair is judged in both orders: ``forth`` with its first answer first, ``back`` turned
round. What is no verdict is not right; nan stands where nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oger_recipe.evaluation.scores import auc, correlation, ranks

TIE = 0.5


@dataclass(frozen=True)
class JudgedPair:
    """first_is_better: the label."""

    first_is_better: bool
    forth: float | None
    back: float | None

    @property
    def of_first(self) -> tuple[float | None, float | None]:
        """Both verdicts, 1 where the pair's first answer is better."""
        return self.forth, None if self.back is None else 1 - self.back


def pair_metrics(pairs: Sequence[JudgedPair]) -> dict[str, Any]:
    """Compute from judged pairs:

    accuracy: share of all verdicts that name the better answer (the mean over both orders, as LLMBar has it);
    accuracy_of_read: the same of the verdicts that could be read, without ties;
    accuracy_of_pairs: share of pairs with more right than wrong verdicts (as JudgeBench has it);
    consistency: of the pairs with two verdicts, the share whose verdicts agree on an answer, or on a tie;
    prefers_first: of the verdicts that are no tie, the share for the answer that was read first (0.5: no bias);
    ties, unread: shares of all verdicts.
    """
    verdicts = [verdict for pair in pairs for verdict in (pair.forth, pair.back)]
    read = [verdict for verdict in verdicts if verdict is not None]
    net = [sum(_right(pair, verdict) for verdict in pair.of_first) for pair in pairs]
    both = [pair.of_first for pair in pairs if None not in pair.of_first]
    right = sum(_right(pair, verdict) > 0 for pair in pairs for verdict in pair.of_first)
    return {
        "pairs": len(pairs),
        "verdicts": len(verdicts),
        "accuracy": _share(right, len(verdicts)),
        "accuracy_of_read": _share(right, sum(each != TIE for each in read)),
        "accuracy_of_pairs": _share(sum(each > 0 for each in net), len(pairs)),
        "consistency": _share(sum(first == second for first, second in both), len(both)),
        "prefers_first": _share(sum(each > TIE for each in read), sum(each != TIE for each in read)),
        "ties": _share(sum(each == TIE for each in read), len(verdicts)),
        "unread": _share(len(verdicts) - len(read), len(verdicts)),
    }


def _right(pair: JudgedPair, of_first: float | None) -> int:
    """Return 1 for a right verdict, -1 for a wrong one, 0 for a tie or no verdict."""
    if of_first is None or of_first == TIE:
        return 0
    return 1 if (of_first > TIE) == pair.first_is_better else -1


def label_metrics(labels: Sequence[float], values: Sequence[float | None], threshold: float) -> dict[str, Any]:
    """Compare a judge's values of answers with their labels.

    Where all labels are 0 or 1: accuracy, the share of answers whose value is at least the threshold where the label
    is 1, and below it where it is 0; auc, how often an answer of label 1 has a greater value than one of label 0,
    equal ones counting half. Always: correlation (Pearson's), rank_correlation (Spearman's) and unread, the share
    without a value.
    """
    known = [(label, value) for label, value in zip(labels, values, strict=True) if value is not None]
    of_labels, of_values = [label for label, _ in known], [value for _, value in known]
    metrics: dict[str, Any] = {"answers": len(labels)}
    if set(labels) <= {0, 1}:
        right = sum((value >= threshold) == (label == 1) for label, value in known)
        metrics |= {"accuracy": _share(right, len(labels)), "auc": auc(of_labels, of_values)}
    return metrics | {
        "correlation": correlation(of_labels, of_values),
        "rank_correlation": correlation(ranks(of_labels), ranks(of_values)),
        "unread": _share(len(labels) - len(known), len(labels)),
    }


def criterion_metrics(labels: Sequence[float], verdicts: Sequence[float | None]) -> dict[str, Any]:
    """Compare verdicts on criteria with their labels, 0 or 1.

    criteria: their number; accuracy_of_criteria: share whose verdict is at least 0.5 where the label is 1, and below
    it where it is 0; criteria_met and labelled_met: shares of verdicts of at least 0.5, and of labels 1;
    unread_criteria: share without a verdict.
    """
    read = [verdict for verdict in verdicts if verdict is not None]
    right = sum(
        verdict is not None and (verdict >= 0.5) == (label == 1)
        for label, verdict in zip(labels, verdicts, strict=True)
    )
    return {
        "criteria": len(labels),
        "accuracy_of_criteria": _share(right, len(labels)),
        "criteria_met": _share(sum(verdict >= 0.5 for verdict in read), len(read)),
        "labelled_met": _share(sum(labels), len(labels)),
        "unread_criteria": _share(len(verdicts) - len(read), len(verdicts)),
    }


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class Prices:
    """per_million_tokens: of tokens read and of tokens written; per_hour: of the machine. One of them, or none."""

    per_million_tokens: tuple[float, float] | None = None
    per_hour: float | None = None


@dataclass(frozen=True)
class Work:
    """What verdicts took. asked: replies that were not kept from before, which the other fields are about; tokens:
    read and written, None where the judge's tokenizer is not known."""

    asked: int
    seconds: float
    loading_s: float = 0.0
    tokens: tuple[int, int] | None = None

    def per_second(self) -> float:
        return self.asked / self.seconds if self.asked and self.seconds > 0 else math.nan

    def cost_per_1000(self, prices: Prices) -> float:
        """Return the cost of a thousand verdicts; nan without a price, or where nothing was asked or counted."""
        if prices.per_hour is not None:
            return 1000 * prices.per_hour / 3600 / self.per_second()
        if prices.per_million_tokens is None or self.tokens is None or not self.asked:
            return math.nan
        total = sum(price * count for price, count in zip(prices.per_million_tokens, self.tokens, strict=True))
        return 1000 * total / 1e6 / self.asked
