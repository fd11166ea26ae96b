"""The user's objects of a fit, and what is built from them.

Keys of a payload, written by the driver and read in the worker:

================  ==========================================================================
``model``         ``nn.Module``, or a callable that returns one
``loss``          callable (output, label), or a list with one per label
``optimizer``     callable (parameters) that returns a torch optimizer
``metrics``       name → callable (output, label) that returns the mean; may be absent
``scheduler``     callable (optimizer) that returns a scheduler, stepped once per epoch; may be absent
``loss_weights``  one number per loss; may be absent
``label_dtypes``  one dtype name per label, as :func:`spark_ring.torch.probe.probe` found them; may be absent
``clip_norm``     gradients of all ranks are scaled down to this norm; may be absent
================  ==========================================================================
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from spark_ring.errors import ConfigError

__all__ = ["KEYS", "build_optimizer", "build_scheduler", "check_payload", "clip_norm"]

_REQUIRED = ("model", "loss", "optimizer")
KEYS = (*_REQUIRED, "metrics", "scheduler", "loss_weights", "label_dtypes", "clip_norm")


def check_payload(payload: dict[str, Any]) -> None:
    """Refuse a payload with a key that nobody would honour, or without one that is needed.

    Raises:
        ConfigError: the key is named.
    """
    for key in payload:
        if key not in KEYS:
            raise ConfigError(f"the payload has an unknown key {key!r}; it may have {', '.join(KEYS)}")
    for key in _REQUIRED:
        if payload.get(key) is None:
            raise ConfigError(f"the payload lacks {key!r}")


def build_optimizer(payload: dict[str, Any], module: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the user's optimizer over all parameters of a module.

    Raises:
        ConfigError: nothing can be trained, or the callable does not return an optimizer that steps without a
            closure.
    """
    parameters = list(module.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"no parameter of the model {type(module).__name__} requires a gradient: nothing to train"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise ConfigError(
            f"the model {type(module).__name__} has lazy layers without shapes; run one batch through it, "
            "or give the layers their sizes"
        )
    make = payload["optimizer"]
    if isinstance(make, torch.optim.Optimizer) or not callable(make):
        raise ConfigError(
            f"optimizer is a {type(make).__name__}; give a callable that takes the parameters and returns an "
            "optimizer, for example lambda params: torch.optim.AdamW(params, lr=1e-3)"
        )
    made = make(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"the callable given as optimizer returned a {type(made).__name__}")
    closure = inspect.signature(type(made).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{type(made).__name__} evaluates the loss several times per step, by its local value; ranks "
            "would part ways. Use an optimizer whose step() needs no closure"
        )
    return made


def build_scheduler(payload: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """Return the user's scheduler, or ``None``.

    Raises:
        ConfigError: what the callable returned cannot be stepped and stored.
    """
    make = payload.get("scheduler")
    if make is None:
        return None
    if not callable(make) or isinstance(make, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(
            f"scheduler is a {type(make).__name__}; give a callable that takes the optimizer and returns one"
        )
    made = make(optimizer)
    for method in ("step", "state_dict", "load_state_dict"):
        if not callable(getattr(made, method, None)):
            raise ConfigError(
                f"the callable given as scheduler returned a {type(made).__name__}: no {method}()"
            )
    return made


def clip_norm(payload: dict[str, Any]) -> float | None:
    """Return the norm to which gradients are clipped, or ``None``.

    Raises:
        ConfigError: it is not a positive number.
    """
    value = payload.get("clip_norm")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"clip_norm is {value!r}; it must be a positive number")
    return float(value)
