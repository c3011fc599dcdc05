"""MoCo v2's views as its users have them: torchvision's transforms on one PIL image after the other."""

import random

import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision import transforms

from protonce.auto import IMAGENET_MEAN, IMAGENET_STD


class Blur:
    """Pillow's Gaussian blur, its radius drawn anew for each image."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def after_crop() -> list[object]:
    """Everything but the crop: jitter, grey, blur, flip, normalisation."""
    return [
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([Blur()], p=0.5),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]


def recipe(size: int) -> transforms.Compose:
    """One random view of a PIL image."""
    return transforms.Compose([transforms.RandomResizedCrop(size, scale=(0.2, 1.0)), *after_crop()])


def two_views(images: list[Image.Image], view: transforms.Compose) -> tuple[Tensor, Tensor]:
    """Query and key of each image; (B, 3, s, s) each."""
    return torch.stack([view(image) for image in images]), torch.stack([view(image) for image in images])
