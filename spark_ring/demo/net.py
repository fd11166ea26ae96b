"""The demo's model: a small multilayer perceptron for one vector of features."""

from __future__ import annotations

import torch

__all__ = ["ArrivalDelay", "mean_absolute_error"]


class ArrivalDelay(torch.nn.Module):
    """Predicts minutes of arrival delay.

    Takes ``(batch, features)`` float32 and returns ``(batch, 1)`` float32, minutes. The last layer speaks in
    units of 40 minutes around 7, about the spread and mean of the target, so that training starts near the
    answer.
    """

    def __init__(self, features: int, hidden: tuple[int, ...] = (128, 64), dropout: float = 0.1) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        width = features
        for size in hidden:
            layers += [torch.nn.Linear(width, size), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
            width = size
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return predicted minutes, ``(batch, 1)``."""
        minutes: torch.Tensor = self.layers(features) * 40.0 + 7.0
        return minutes


def mean_absolute_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Mean absolute error in minutes."""
    return (output - label).abs().mean()
