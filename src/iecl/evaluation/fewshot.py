"""Few labels: logistic regression on the frozen features of a few training images, over several fixed draws."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, final

from jaxtyping import Int64
from torch import Tensor

from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores
from iecl.evaluation.features import Features, refuse_one_class
from iecl.evaluation.linear import Scale
from iecl.evaluation.logistic import logistic
from iecl.evaluation.splits import RULE, Budget, fingerprint, hashes_of, labeled_part, names_of, published
from iecl.files import LARGEST
from iecl.settings import setting


@dataclass(frozen=True, kw_only=True)
class FewShotSettings:
    """Which labels are known, and how the classifier is held back."""

    label_fractions: tuple[float, ...] = setting(
        (0.01, 0.1), "shares of each class whose labels are known", above=0, high=1
    )
    shots: tuple[int, ...] = setting((1, 5, 10), "numbers of images of each class whose labels are known", low=1)
    trials: int = setting(5, "different draws of those images; mean and standard deviation are over them", low=1)
    inverse_penalty: float = setting(
        10.0,
        "inverse of the penalty (C), for features of mean 0 and mean squared length 1; fixed, never chosen",
        above=0,
    )
    seed: int = setting(0, "decides which images are drawn", low=0, high=LARGEST)

    def __post_init__(self) -> None:
        if not self.budgets:
            raise ValueError("label_fractions and shots are both empty: there is nothing to measure")

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Shares first, each once."""
        every = [
            *(Budget(share=share) for share in self.label_fractions),
            *(Budget(shots=shots) for shots in self.shots),
        ]
        return tuple(dict.fromkeys(every))


@dataclass(frozen=True)
class FewShotResult:
    """What one budget gives."""

    budget: Budget
    top1: tuple[float, ...]
    """Of each try."""
    parts: tuple[Int64[Tensor, " part"], ...]
    """Which rows had labels in each try."""
    misfits: int
    """Classes that were too small for the budget."""

    @property
    def std(self) -> float:
        """Standard deviation of the accuracy over the tries, as of a sample; 0 of one try."""
        return stdev(self.top1) if len(self.top1) > 1 else 0.0


def few_shot(
    train: Features,
    test: Features,
    settings: FewShotSettings | None = None,
    *,
    hashes: Int64[Tensor, " n"] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[FewShotResult]:
    """Fit a classifier on each draw of each budget and test it.

    Features are standardized over all training images, which takes no label, and divided by the root of their number.
    The classifier is the minimum of a convex function: nothing is random but the draw, nothing is chosen.

    Args:
        train: labeled features.
        test: labeled features of other images.
        settings: which budgets, how many tries.
        hashes: a number for each labeled row of `train` that the draws are made of; None: its index.
        progress: called with how many classifiers are done, of how many.

    Raises:
        UserError: labels are missing, there is only one class, or a feature is not finite.
    """
    settings = settings or FewShotSettings()
    train, test = train.labeled("train"), test.labeled("test")
    refuse_one_class(train.labels)
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    scale = Scale.of(train.values)
    seen, asked = (_shortened(scale.apply(some)) for some in (train, test))
    results: list[FewShotResult] = []
    for budget in settings.budgets:
        parts, found = [], []
        for attempt in range(settings.trials):
            draws = train.index if hashes is None else hashes
            parts.append(labeled_part(train.labels, draws, budget, settings.seed, attempt))
            head = logistic(seen.rows(parts[-1]), classes, settings.inverse_penalty).head
            found.append(head.evaluate(asked)[0].top1)
            if progress is not None:
                done = len(results) * settings.trials + attempt + 1
                progress(done, len(settings.budgets) * settings.trials)
        results.append(FewShotResult(budget, tuple(found), tuple(parts), budget.misfits(train.labels.bincount())))
    return results


def _shortened(features: Features) -> Features:
    """Rows of mean squared length 1, so that one strength suits features of any width."""
    return replace(features, values=features.values / features.values.shape[1] ** 0.5)


@final
class FewShot(Evaluation):
    """Accuracy with few labels, by budget."""

    Settings = FewShotSettings
    repeats_itself = True

    def __init__(self, settings: FewShotSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `fewshot/1 logistic C=10 standardized 5 tries`."""
        s = self.settings
        return (
            f"fewshot/1 logistic C={s.inverse_penalty:g} standardized {s.trials} {'tries' if s.trials > 1 else 'try'}"
        )

    def measure(self, context: EvaluationContext) -> Scores:
        """Means over the trials; among the details are standard deviations, and fingerprints and lists of the draws."""
        train = context.train
        names = names_of(context.train_images, train.index)
        results = few_shot(
            train, context.test, self.settings, hashes=hashes_of(names), progress=context.line.count("classifier")
        )
        lists = {result.budget.name: published(names, result.parts) for result in results}
        details: dict[str, Any] = {
            "deviation": {f"top1_{result.budget.name}": result.std for result in results},
            "tries": {result.budget.name: list(result.top1) for result in results},
            "images": {result.budget.name: len(result.parts[0]) for result in results},
            "small_classes": {result.budget.name: result.misfits for result in results if result.misfits},
            "splits": {name: [fingerprint(part) for part in parts] for name, parts in lists.items()},
            "split_rule": RULE,
        }
        values = {f"top1_{result.budget.name}": mean(result.top1) for result in results}
        return Scores(values, context.counts, context.protocol, context.seen, details, lists=lists)
