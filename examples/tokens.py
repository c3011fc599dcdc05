"""PCL on sequences of tokens of unequal length: views by dropped and masked tokens, a small transformer.

scikit-learn's 1,797 digits, each told in words: a line of the picture is a word, one of 256 by which of its eight cells
have ink. A word that repeats the one before is not said again, and one in five is lost on the way. To raw features two
words are alike or not, at the same place (one-hot) or anywhere (counts). PCL learns from the company of a word which
others mean nearly the same.

python examples/tokens.py [RUN]
"""

import copy
import sys
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from other_data import Score, compare, split, uniform
from sklearn.datasets import load_digits
from torch import Tensor, nn

import protonce
from protonce.data.views import Samples

PADDING, START, MASK, FIRST_WORD = 0, 1, 2, 3
VOCABULARY = FIRST_WORD + 256
LOST = 0.2  # share of the words that never arrived, in training and in test
DROPPED, MASKED = 0.2, 0.2  # shares of the others that a view leaves out, or knows nothing of but their place


class TokenViews:
    """Two views of a sequence: each drops words of its own, closes the gaps, and masks some of the rest."""

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return self.view(samples, "query"), self.view(samples, "key")

    def view(self, samples: Samples, which: str) -> Tensor:
        x = samples.data  # (B, L) integers
        draw = uniform(samples, f"{which} words", x.shape[1])  # (B, L)
        word = x >= FIRST_WORD  # the start stays, so that no view is empty
        x = x.masked_fill(word & (draw < MASKED), MASK).masked_fill(word & (draw >= 1 - DROPPED), PADDING)
        closed = (x == PADDING).int().argsort(dim=1, stable=True)  # padding goes to the end, all else keeps its order
        return x.gather(1, closed)

    def plain(self, samples: Samples) -> Tensor:
        return samples.data


class Transformer(nn.Module):
    """Words and their places, one layer of attention, and the largest value of each feature over the words."""

    def __init__(self, length: int, features: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, features)
        self.places = nn.Embedding(length, features)
        self.layer = nn.TransformerEncoderLayer(features, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x: Tensor) -> Tensor:
        padding = x == PADDING  # (B, L)
        y = self.words(x) + self.places.weight  # (B, L, D)
        y = self.layer(y, src_key_padding_mask=padding)
        return self.norm(y.masked_fill(padding[:, :, None], -torch.inf).amax(dim=1))  # (B, D)


def texts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of at most eight words after the start, padded to one length, (1797, 9), and the digit of each."""
    digits = load_digits()
    lines = np.packbits(digits.images >= 8, axis=2)[:, :, 0].astype(np.int64)  # (1797, 8), a byte a line
    random = np.random.default_rng(seed)
    tokens = np.full((len(lines), 1 + lines.shape[1]), PADDING)
    for sequence, words in zip(tokens, lines, strict=True):
        said = words[np.append(True, words[1:] != words[:-1])]
        said = said[random.random(len(said)) >= LOST]
        sequence[: 1 + len(said)] = [START, *(FIRST_WORD + said)]
    return tokens, digits.target


def one_hot(x: Tensor) -> Tensor:
    """Which word stands at which place; (B, L * words)."""
    return F.one_hot(x, VOCABULARY)[:, :, FIRST_WORD:].flatten(1).float()


def counts(x: Tensor) -> Tensor:
    """How often each word is there; (B, words)."""
    return F.one_hot(x, VOCABULARY)[:, :, FIRST_WORD:].sum(dim=1).float()


def main(out: str, epochs: int = 40, seed: int = 0) -> dict[str, Score]:
    train, test = split(*texts(seed), seed)
    torch.manual_seed(seed)  # a module of one's own brings its weights along
    encoder = Transformer(length=train.values.shape[1])
    untrained = copy.deepcopy(encoder)  # `train` works on the module it is given
    settings = {"epochs": epochs, "batch_size": 128, "lr": 0.3, "seed": seed}  # `auto` chooses the rest by the size
    machine = {"device": "cpu", "workers": 0}  # nothing is read from a disk, and no GPU is needed
    run = protonce.train(train, out, encoder=encoder, views=TokenViews(), **settings, **machine)
    return compare(run, untrained, [one_hot, counts], train, test)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as folder:
        main(*sys.argv[1:] or [folder])
