"""What `import protonce` offers: `train`, `load`, and a `Run` with a method for each command."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from torch import Tensor, nn

import protonce.run
from protonce import api
from protonce.data.sources import Data
from protonce.data.views import Views

if TYPE_CHECKING:
    from protonce.export.exporting import Exported
    from protonce.export.shipment import Which
    from protonce.label.labelling import Predictions
    from protonce.label.labels_file import Given
    from protonce.label.search import Hit, Photo
    from protonce.label.sorting import Sorted
    from protonce.label.suggestion import Strategy
    from protonce.label.tidy import Tidied

P = ParamSpec("P")


class Run(protonce.run.Run):
    """A run folder, finished or not, and what can be done with it.

    The methods are the commands of the same names. They print nothing; `data` is where the images of the run are, if
    they have moved.
    """

    def evaluate(
        self, protocol: str, *, train: Data | None = None, test: Data | None = None, **options: Any
    ) -> dict[str, Any]:
        """Evaluate the encoder: "knn", "linear", "lowshot", "semisup", "clustering" or "information".

        See `protonce.evaluate.protocols.evaluate`.
        """
        from protonce.evaluate.protocols import evaluate
        from protonce.untrained import untrained_like

        with untrained_like(self) as untrained:
            return evaluate(self, protocol, train=train, test=test, quiet=True, untrained=untrained, **options)

    def report(
        self,
        *,
        against: protonce.run.Run | None = None,
        classes: int | Sequence[str] | None = None,
        figures: Path | None = None,
        data: Data | None = None,
    ) -> Path:
        """Write RUN/report.html; see `protonce.report.page.write_report`."""
        from protonce.report.page import write_report

        return write_report(self, data=data, against=against, classes=classes, figures=figures, quiet=True)

    def tidy(
        self, *, against: Data | None = None, threshold: float | None = None, data: Data | None = None
    ) -> "Tidied":
        """Find copies, look-alikes, outliers, and images that another set shares; see `protonce.label.tidy.tidy`."""
        from protonce.label.tidy import tidy

        return tidy(self, against=against, threshold=threshold, data=data, quiet=True)

    def suggest(
        self,
        budget: int = 20,
        labels: "Given | None" = None,
        strategy: "Strategy" = "typiclust",
        *,
        data: Data | None = None,
    ) -> list[str]:
        """Names of the images to label first, the most useful first.

        Args:
            budget: how many.
            labels: what is labelled already: a table, or the label of each image by its name.
            strategy: "typiclust" or "maxherding".
            data: the images of the run, if they have moved.
        """
        from protonce.label.commands import suggest_images

        source = self.source(data)
        return [source.names[i] for i in suggest_images(self, source, budget, labels, strategy, quiet=True)]

    def label(self, labels: "Given", *, min_confidence: float = 0.0, data: Data | None = None) -> "Predictions":
        """Labels of all images from those of some.

        Args:
            labels: a table, or the label of each image by its name.
            min_confidence: images of which the classifier is less certain get no label.
            data: the images of the run, if they have moved.
        """
        from protonce.label.commands import label_images

        return label_images(self, self.source(data), labels, min_confidence, quiet=True)

    def search(
        self, photos: "Sequence[Photo]", *, top: int = 20, labels: "Given | None" = None, data: Data | None = None
    ) -> "list[Hit]":
        """The images that are most similar to each photo.

        Args:
            photos: image files, Pillow images or uint8 arrays (h, w, 3).
            top: how many images for each.
            labels: to be given with the images; None: those of their folders.
            data: the images of the run, if they have moved.
        """
        from protonce.label.labels_file import take_labels
        from protonce.label.search import Photos, open_search

        known = None if labels is None else take_labels(labels, self.images[0])
        return open_search(self, known, data, quiet=True).like_photos(Photos(photos), top)

    def sort(
        self,
        new: Data,
        out: str | Path,
        *,
        labels: "Given | None" = None,
        granularity: int = 0,
        min_confidence: float = 0.0,
        copy: bool = False,
        data: Data | None = None,
    ) -> "Sorted":
        """Sort new images into folders of labels or clusters; see `protonce.label.sorting.sort_images`."""
        from protonce.label.sorting import sort_images

        return sort_images(
            self,
            new,
            Path(out),
            labels=labels,
            granularity=granularity,
            min_confidence=min_confidence,
            copy=copy,
            data=data,
            quiet=True,
        )

    def export(
        self,
        to: str,
        out: str | Path,
        *,
        encoder: "Which | None" = None,
        prototypes: bool = False,
        labels: "Given | None" = None,
        preprocess: bool = False,
        example: Tensor | None = None,
    ) -> "Exported":
        """Write an encoder for another program.

        Args:
            to: "onnx", "torch-export", "timm", "torchvision", "safetensors", "detectron2", "huggingface" or "pcl".
            out: a new file, or for "huggingface" a new folder.
            encoder: "query" or "momentum"; None: query, or momentum with prototypes, which are means of its embeddings.
            prototypes: return the nearest prototype of each granularity and its distance too ("onnx", "torch-export").
            labels: a table, or the label of each image by its name, to name prototypes by, of several labels the first;
                None: those of the folders.
            preprocess: take pixels (B, H, W, 3) of type uint8, and resize, crop and normalise them inside.
            example: a batch of two inputs, if the run was trained with custom views.
        """
        from protonce.export.exporting import export
        from protonce.label.labels_file import take_labels

        told = None if labels is None else take_labels(labels, self.images[0])
        known = None if told is None else {i: own[0] for i, own in told.items()}
        return export(
            self,
            to,
            Path(out),
            encoder=encoder,
            prototypes=prototypes,
            labels=known,
            prepare=preprocess,
            example=example,
        )


def load(path: str | Path, encoder: nn.Module | None = None, views: Views | None = None) -> Run:
    """Open a run folder; for arguments and errors see `protonce.run.Run`."""
    return Run(path, encoder, views)


def import_encoder(
    file: str,
    out: str | Path,
    *,
    data: Data | None = None,
    like: protonce.run.Run | None = None,
    quiet: bool = False,
    **settings: object,
) -> Run:
    """Make a run from other weights, or from an untrained encoder; see `protonce.importing.import_encoder`."""
    from protonce.importing import import_encoder

    run, _ = import_encoder(file, Path(out), data=data, like=like, quiet=quiet, **settings)
    return Run(run.path)


def _with_methods(train: Callable[P, protonce.run.Run]) -> Callable[P, Run]:
    @functools.wraps(train)
    def trained(*args: P.args, **kwargs: P.kwargs) -> Run:
        run = train(*args, **kwargs)
        return Run(run.path, *run.own_parts)

    return trained


train = _with_methods(api.train)
