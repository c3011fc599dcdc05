"""PCL on token sequences of variable length: views drop and mask tokens; the encoder is a small transformer.

The data are scikit-learn's 1,797 digits as text: each line of eight binarised pixels is one of 256 words. Consecutive
repetitions of a word are removed, and one word in five is lost at random. There are two kinds of raw features: one-hot
vectors, which compare words position by position, and word counts. Both treat different words as unrelated. PCL learns
from context which words are similar.

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
LOST = 0.2  # fraction of the words that are missing from the data, in training and test
DROPPED, MASKED = 0.2, 0.2  # fractions of the remaining words that a view drops or masks


class TokenViews:
    """Two views of a sequence: each drops some words at random, closes the gaps, and masks some other words."""

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return self.view(samples, "query"), self.view(samples, "key")

    def view(self, samples: Samples, which: str) -> Tensor:
        x = samples.data  # (B, L) integers
        draw = uniform(samples, f"{which} words", x.shape[1])  # (B, L)
        word = x >= FIRST_WORD  # the start token is kept, so that no view is empty
        x = x.masked_fill(word & (draw < MASKED), MASK).masked_fill(word & (draw >= 1 - DROPPED), PADDING)
        closed = (x == PADDING).int().argsort(dim=1, stable=True)  # move padding to the end, keep the order of the rest
        return x.gather(1, closed)

    def plain(self, samples: Samples) -> Tensor:
        return samples.data


class Transformer(nn.Module):
    """Word and position embeddings, one transformer layer, and max pooling over the words."""

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
    """Padded sequences (1797, 9) of a start token and at most eight words, and their digits (1797,)."""
    digits = load_digits()
    lines = np.packbits(digits.images >= 8, axis=2)[:, :, 0].astype(np.int64)  # (1797, 8), one byte per line
    random = np.random.default_rng(seed)
    tokens = np.full((len(lines), 1 + lines.shape[1]), PADDING)
    for sequence, words in zip(tokens, lines, strict=True):
        said = words[np.append(True, words[1:] != words[:-1])]
        said = said[random.random(len(said)) >= LOST]
        sequence[: 1 + len(said)] = [START, *(FIRST_WORD + said)]
    return tokens, digits.target


def one_hot(x: Tensor) -> Tensor:
    """One-hot encoding of the word at each position; (B, L * words)."""
    return F.one_hot(x, VOCABULARY)[:, :, FIRST_WORD:].flatten(1).float()


def counts(x: Tensor) -> Tensor:
    """Bag of words: the number of occurrences of each word; (B, words)."""
    return F.one_hot(x, VOCABULARY)[:, :, FIRST_WORD:].sum(dim=1).float()


def main(out: str, epochs: int = 40, seed: int = 0) -> dict[str, Score]:
    train, test = split(*texts(seed), seed)
    torch.manual_seed(seed)  # for the initial weights of the encoder
    encoder = Transformer(length=train.values.shape[1])
    untrained = copy.deepcopy(encoder)  # `train` modifies the encoder in place
    settings = {"epochs": epochs, "batch_size": 128, "lr": 0.3, "seed": seed}  # the rest is `auto`
    machine = {"device": "cpu", "workers": 0}  # the data are in memory, and the model is small
    run = protonce.train(train, out, encoder=encoder, views=TokenViews(), **settings, **machine)
    return compare(run, untrained, [one_hot, counts], train, test)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as folder:
        main(*sys.argv[1:] or [folder])
