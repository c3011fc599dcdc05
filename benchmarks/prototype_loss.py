"""The prototype term of ProtoNCE at ImageNet's size, forward and backward, against the published code's way.

    python -m benchmarks.prototype_loss

Batch 256, k = 25,000, 50,000 and 100,000 prototypes of 128 dimensions, r = 16,000 negatives for each. Beside it,
`ratio_to_products`: our time over that of the two bare matrix products a granularity needs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.baselines.published_prototype_loss import prototype_loss as published
from benchmarks.timing import interleaved, parser, publish
from protonce.losses import prototype_term, sample_candidates
from protonce.prototypes import Prototypes

BATCH, DIM, CLUSTERS, NEGATIVES, IMAGES = 256, 128, (25_000, 50_000, 100_000), 16_000, 1_281_167


def main() -> None:
    options = parser(__doc__, threads=2, repeats=15).parse_args()
    torch.set_num_threads(options.threads)
    draw = torch.Generator().manual_seed(0)
    unit = lambda *shape: F.normalize(torch.randn(*shape, generator=draw), dim=1)  # noqa: E731
    query = unit(BATCH, DIM).requires_grad_()
    index = torch.randint(IMAGES, (BATCH,), generator=draw)
    prototypes = []
    for k in CLUSTERS:
        centroids, assignment = unit(k, DIM), torch.randint(k, (IMAGES,), generator=draw)
        concentration = 0.1 + 0.2 * torch.rand(k, generator=draw)
        prototypes.append(Prototypes(centroids, centroids, assignment, concentration))
    negatives = unit(NEGATIVES, DIM)
    upstream = torch.randn(BATCH, NEGATIVES, generator=draw)

    def backward(loss: Tensor) -> None:
        query.grad = None
        loss.backward()

    def ours() -> None:
        candidates = [sample_candidates(k, NEGATIVES, draw) for k in CLUSTERS]
        backward(prototype_term(query, prototypes, index, candidates)[0])

    def products() -> None:
        with torch.no_grad():
            for _ in CLUSTERS:
                query @ negatives.T  # forward
                upstream @ negatives  # backward

    sides = {"protonce": ours, "published": lambda: backward(published(query, prototypes, index, NEGATIVES))}
    seconds = interleaved({**sides, "products": products}, options.repeats)
    publish(
        "prototype_loss",
        {
            "ratio": seconds["published"] / seconds["protonce"],
            "goal": 2.5,
            "better": "higher",
            "ratio_to_products": seconds["protonce"] / seconds["products"],
            "timed": f"forward and backward, batch {BATCH}, k = {CLUSTERS}, r = {NEGATIVES:,}, {DIM}-D, draws included",
            "milliseconds": {name: 1000 * s for name, s in seconds.items()},
            "threads": options.threads,
            "repeats": options.repeats,
        },
    )


if __name__ == "__main__":
    main()
