"""Classifiers for a few labels on frozen features, and which of them to use: pure functions of unit vectors.

Each takes features of labelled images (l, D), their classes (l,), the number of classes, and features of images to
classify (q, D), and returns logits (q, C).
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from protonce import randomness
from protonce.ties import LOGIT, first_of_highest

Classifier = Callable[[Tensor, Tensor, int, Tensor], Tensor]
TAU = 0.1  # temperature of similarities
STEPS = 500  # of L-BFGS, at most
CURVATURE = 0.02  # of the loss, as it is assumed: only the number of steps depends on it
FOLDS = 10  # of the cross-validation
ENOUGH = 20  # images held out to choose a classifier by; with fewer it is "prototypes"
NEVER = -1  # fold of an image that is not held out
COLDEST, WARMEST = -4.0, 4.0  # logarithm of the temperature


def means(known: Tensor, codes: Tensor, classes: int, asked: Tensor) -> Tensor:
    """Similarity to the mean of each class, its prototype."""
    sums = known.new_zeros(classes, known.shape[1]).index_add_(0, codes, known)
    return asked @ F.normalize(sums, dim=1).T / TAU


def nearest(known: Tensor, codes: Tensor, classes: int, asked: Tensor) -> Tensor:
    """Votes of all labelled images, each with the weight exp(v·v'/τ); the nearest count most."""
    similarity = asked @ known.T / (TAU / 2)  # (q, l)
    own = codes == torch.arange(classes)[:, None]  # (C, l)
    return torch.stack([similarity[:, mine].logsumexp(dim=1) for mine in own], dim=1)


def linear(known: Tensor, codes: Tensor, classes: int, asked: Tensor, strength: float) -> Tensor:
    """Softmax regression with an L2 penalty."""

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, codes, reduction="sum")

    return fit_linear(known, loss, classes, asked, strength)


def fit_linear(known: Tensor, loss: Callable[[Tensor], Tensor], outputs: int, asked: Tensor, strength: float) -> Tensor:
    """Linear scores (q, outputs) of images by the weights with the smallest ‖W‖²/2 + strength · loss.

    Args:
        known: features to fit, (l, D).
        loss: of their scores (l, outputs), summed over the images.
        outputs: number of scores of an image.
        asked: features to score, (q, D).
        strength: weight of the loss.
    """
    # The best weights are combinations of the features to fit, so their principal directions are enough. Each of them,
    # and the bias, is scaled so that the sum is about equally curved in all, for which the solver needs fewer steps.
    u, s, v = torch.linalg.svd(known.double(), full_matrices=False)  # (l, r), (r,), (r, D)
    scale = (1 + CURVATURE * s.square()).rsqrt()
    bias_scale: float = (1 + CURVATURE * len(known)) ** -0.5
    x: Tensor = u * (s * scale)  # (l, r)
    y: Tensor = asked.double() @ (v.T * scale)  # (q, r)
    weight = y.new_zeros(outputs, y.shape[1], requires_grad=True)
    bias = y.new_zeros(outputs, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=STEPS,
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        total: Tensor = (weight * scale).square().sum() / 2 + strength * loss(x @ weight.T + bias * bias_scale)
        total.backward()
        return total

    solver.step(closure)
    return (y @ weight.T + bias * bias_scale).detach().to(asked)


STRENGTHS = (1.0, 10.0, 100.0)
CLASSIFIERS: Mapping[str, Classifier] = {  # of equally good ones the first is used
    "prototypes": means,
    "neighbours": nearest,
    **{f"linear, C = {strength:g}": partial(linear, strength=strength) for strength in STRENGTHS},
}


def folds(codes: Tensor, seed: int) -> NDArray[np.int64]:
    """The fold of each labelled image, (l,); `NEVER` for the only image of a class.

    Images of a class are spread over as many folds as possible, so that whichever fold is held out, each class has
    images in the others.
    """
    order = torch.randperm(len(codes), generator=randomness.generator(seed, "label folds")).numpy()
    found = np.full(len(codes), NEVER, dtype=np.int64)
    place = 0
    for code in range(int(codes.max()) + 1):
        members = order[codes.numpy()[order] == code]
        if len(members) > 1:
            found[members] = (place + np.arange(len(members))) % FOLDS
            place += len(members)
    return found


def held_out_logits(
    classifier: Classifier, known: Tensor, codes: Tensor, classes: int, fold: NDArray[np.int64]
) -> Tensor:
    """Logits of each labelled image by a classifier that has not seen its fold; NaN if it is never held out; (l, C)."""
    found = known.new_full((len(known), classes), torch.nan)
    for which in np.unique(fold[fold != NEVER]):
        out = torch.from_numpy(fold == which)
        found[out] = classifier(known[~out], codes[~out], classes, known[out])
    return found


def winners(logits: Tensor) -> Tensor:
    """The class with the highest logit, the first of several that are equal up to rounding; (q,)."""
    values = logits.numpy()
    return torch.from_numpy(first_of_highest(values, LOGIT * np.abs(values).max(axis=1).clip(1)))


def choose(known: Tensor, codes: Tensor, classes: int, seed: int) -> tuple[str, dict[str, float], Tensor]:
    """The classifier that is right most often on labelled images that it has not seen.

    A few images that happen to be right are no reason to choose one.

    Returns:
        its name; the accuracy of each that was compared, empty if no class has two labels; and its logits of images
        held out, (l, C).
    """
    fold = folds(codes, seed)
    tested = torch.from_numpy(fold != NEVER)
    if not tested.any():
        return "prototypes", {}, known.new_full((len(known), classes), torch.nan)
    compared = CLASSIFIERS if int(tested.sum()) >= ENOUGH else {"prototypes": CLASSIFIERS["prototypes"]}
    logits = {name: held_out_logits(c, known, codes, classes, fold) for name, c in compared.items()}
    right = {name: int((winners(x[tested]) == codes[tested]).sum()) for name, x in logits.items()}
    best = max(right, key=lambda name: right[name])
    return best, {name: count / int(tested.sum()) for name, count in right.items()}, logits[best]


def temperature(logits: Tensor, codes: Tensor) -> float:
    """The temperature at which softmax(logits / T) is calibrated: the smallest cross-entropy with the labels.

    To the images one is added whose label could be any: a few images that are all right do not prove certainty.

    Args:
        logits: of images held out, (t, C).
        codes: their classes, (t,).
    """

    def loss(t: float) -> float:
        log_p = F.log_softmax(logits.double() / t, dim=1)  # (t, C)
        return float(F.nll_loss(log_p, codes, reduction="sum") - log_p.mean())

    return best_temperature(loss)


def best_temperature(loss: Callable[[float], float]) -> float:
    """The temperature with the smallest loss, searched for on a logarithmic scale."""
    found = minimize_scalar(lambda log_t: loss(float(np.exp(log_t))), bounds=(COLDEST, WARMEST), method="bounded")
    return float(np.exp(found.x))
