"""Gradients reduced while backward still runs.

Every parameter has a hook that autograd calls when its gradient for this backward pass is complete. The hook
submits an allreduce of the gradient, in place, and backward goes on: the ring's own thread moves the bytes.
``synchronize`` then submits what no hook did, waits for all, and the optimizer may step::

    backward:     layer N ── layer N-1 ── layer N-2 ── …
    ring:               └ grad N ── grad N-1 ── …
    synchronize:                                    └ missing ones as zeros, wait

Ranks match gradients by name, not by order, so it does not matter in which order a rank's hooks fire. A
parameter without a gradient on this rank (unused in this step, or no rows) takes part with zeros: the other
ranks wait for it. The engine fuses small gradients into buckets.

With ``backward_passes_per_step=n`` gradients add up locally and are reduced at the n-th pass. They are then
reduced in a copy: further passes may come before the step (left-overs of an epoch), and then the gradient as
it stands at ``synchronize`` is what is reduced. Ranks may differ in how many passes came. So ``synchronize``
lets all tell each other which gradients have grown since they were submitted (one byte for each; the largest
counts), and every rank submits those once more.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spark_ring import _core
from spark_ring.communicator import Communicator
from spark_ring.errors import DataError
from spark_ring.torch.buffers import buffer_of, check_reducible

__all__ = ["GradientReducer"]

# Optimizers made so far on each communicator. Ranks make them in the same order, so the number is the same.
_made: weakref.WeakKeyDictionary[Communicator, int] = weakref.WeakKeyDictionary()


@dataclass
class _Pending:
    """An allreduce under way.

    Attributes:
        handle: the operation.
        tensor: what is reduced in place: the gradient itself or a copy.
        gradient: the gradient it belongs to.
        passes: backward passes it holds.
    """

    handle: _core.Handle
    tensor: torch.Tensor
    gradient: torch.Tensor
    passes: int


class GradientReducer:
    """Reduces the gradients of some parameters over the ranks of a communicator.

    Args:
        names: parameter → name, unique, the same on every rank.
        communicator: the ranks.
        op: ``"average"`` or ``"sum"``.
        passes: backward passes that make one gradient.
        predivide: gradients are divided by it before the sum and multiplied by it afterwards.

    Attributes:
        waited: seconds spent waiting in :meth:`synchronize`: communication that backward did not hide.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        communicator: Communicator,
        op: str,
        passes: int,
        predivide: float,
    ) -> None:
        number = _made.get(communicator, 0)
        _made[communicator] = number + 1
        self._prefix = f"optimizer{number}"
        self._communicator = communicator
        self._op = op
        self._passes = passes
        self._prescale, self._postscale = 1.0 / predivide, predivide
        self._names = dict(names)
        self._hooks: dict[torch.Tensor, Any] = {}
        self._counts: dict[torch.Tensor, int] = {}
        self._pending: dict[torch.Tensor, _Pending] = {}
        self._fresh = False
        self.waited = 0.0
        for parameter in self._names:
            self._watch(parameter)

    @property
    def in_flight(self) -> bool:
        """Whether gradients are being reduced now."""
        return bool(self._pending)

    @property
    def done(self) -> bool:
        """Whether the gradients, as they stand, are already reduced."""
        return self._fresh

    def synchronize(self, parameters: Iterable[torch.Tensor]) -> None:
        """Submit the gradients that no hook did, and wait for all.

        Args:
            parameters: all the optimizer has, in the order of its groups; those that need no gradient are
                left alone. A parameter that was added or unfrozen later takes part from now on.

        Raises:
            CommunicatorError: what a reduction failed with.
        """
        began = time.perf_counter()
        taking_part = []
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad:
                self._names.setdefault(parameter, f"late.{index}")
                self._watch(parameter)
                self._complete(parameter)
                taking_part.append(parameter)
        try:
            self._submit_grown(taking_part)
        except BaseException:
            self._pending.clear()
            raise
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            entry.handle.wait()
            if entry.tensor.data_ptr() != entry.gradient.data_ptr():
                entry.gradient.copy_(entry.tensor)
        self._counts.clear()
        self._fresh = True
        self.waited += time.perf_counter() - began

    def forget(self) -> None:
        """The gradients are gone or used up: the next backward pass begins a new step."""
        self._counts.clear()
        self._fresh = False

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def _watch(self, parameter: torch.Tensor) -> None:
        if parameter not in self._hooks and parameter.requires_grad:
            self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]

    def _ready(self, parameter: torch.Tensor) -> None:
        """Called by autograd: the gradient of this backward pass is complete."""
        self._fresh = False
        count = self._counts[parameter] = self._counts.get(parameter, 0) + 1
        if count == self._passes:
            self._submit(parameter)
        elif count > self._passes and self._passes == 1:
            raise RuntimeError(
                f"the gradient of {self._names[parameter]!r} was computed again before step(), while it is "
                "being reduced. Call step() or synchronize() after each backward pass, or pass "
                "backward_passes_per_step to DistributedOptimizer to accumulate gradients."
            )

    def _complete(self, parameter: torch.Tensor) -> None:
        """Make sure that a reduction of the gradient is under way."""
        if parameter not in self._pending:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._submit(parameter)

    def _submit_grown(self, parameters: list[torch.Tensor]) -> None:
        """Submit once more what was submitted, on any rank, before its last backward pass."""
        if self._passes == 1 or not parameters:
            return  # a further pass is refused
        grown = np.array(
            [self._pending[each].passes != self._counts.get(each, 0) for each in parameters], np.uint8
        )
        grown = self._communicator.allreduce(grown, "max", name=f"{self._prefix}/grown")
        for parameter, again in zip(parameters, grown, strict=True):
            if again:
                self._pending[parameter].handle.wait()  # its name is in use until then
                self._submit(parameter)

    def _submit(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        name = self._names[parameter]
        if gradient is None:
            raise DataError(
                f"the gradient of {name!r} vanished during backward; a hook of the model removed it"
            )
        check_reducible(gradient, f"gradient of {name!r}", self._op)
        tensor = gradient.detach()
        if self._passes > 1:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        else:
            tensor = tensor.contiguous()
        buffer = buffer_of(tensor)
        handle = self._communicator.core.allreduce(
            [buffer], [buffer], self._op, f"{self._prefix}/{name}", self._prescale, self._postscale
        )
        self._pending[parameter] = _Pending(handle, tensor, gradient, self._counts.get(parameter, 0))
