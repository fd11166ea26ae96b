"""The hands of torch: one step over the global batch.

The gradient that is applied is that of the mean loss over the *global* batch. Each rank takes the mean over
its own rows and multiplies it by ``rows / global_rows`` before backward; the gradients of all ranks are then
summed. So ranks may have different numbers of rows in a step (tails of an epoch), or none, and N workers take
the steps that one worker with the same global batch would.

With row weights, rows of weight 0 are left out of the batch, the others add ``weight * loss``, and the sum is
divided by the weight of all ranks. A step whose rows all weigh nothing is not taken.

A rank without rows has no forward and no backward; its gradients take part as zeros.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from spark_ring.communicator import Communicator
from spark_ring.data.batch import Batch
from spark_ring.data.schema import Contract
from spark_ring.errors import DataError
from spark_ring.torch import codec
from spark_ring.torch.functions import broadcast_parameters, load_optimizer_state
from spark_ring.torch.module import build_module, forward, weights_bytes
from spark_ring.torch.objective import Objective
from spark_ring.torch.optimizer import DistributedOptimizer
from spark_ring.torch.payload import build_optimizer, build_scheduler, check_payload, clip_norm
from spark_ring.torch.randomness import GeneratorStates, seed_all
from spark_ring.train.adapter import Sums
from spark_ring.train.job import TrainOptions

__all__ = ["TorchAdapter"]


class TorchAdapter:
    """Trains an ``nn.Module``. :class:`spark_ring.train.adapter.Adapter` says when each method is called."""

    weights_suffix = ".safetensors"

    def setup(
        self,
        payload: dict[str, Any],
        contract: Contract,
        options: TrainOptions,
        communicator: Communicator,
    ) -> None:
        """Build everything from the payload; rank 0's initial weights become everybody's.

        Raises:
            ConfigError: something in the payload cannot be used; the key is named.
        """
        self._generators = GeneratorStates()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(options.threads or _fair_share(communicator))
        self._contract = contract
        self._options = options
        self._communicator = communicator
        self._weight_seconds = 0.0
        seed_all(options.seed)
        check_payload(payload)
        self._module = build_module(payload["model"]).cpu()
        if not self._module.training:
            self._module.train()
        self._objective = Objective(payload, contract)
        self._clip_norm = clip_norm(payload)
        optimizer = build_optimizer(payload, self._module)
        self._optimizer: Any = DistributedOptimizer(
            optimizer, _names(self._module, optimizer), op="sum", communicator=communicator
        )
        self._scheduler = build_scheduler(payload, self._optimizer)
        broadcast_parameters({**dict(self._module.named_parameters()), **dict(self._module.named_buffers())})

    def metric_names(self) -> tuple[str, ...]:
        """``"loss"`` and the user's metrics."""
        return ("loss", *self._objective.metric_names)

    def start_epoch(self, epoch: int) -> None:
        """Seed from (seed, epoch, rank)."""
        seed_all(self._options.seed, epoch, self._communicator.rank)

    def train_step(self, batch: Batch) -> Sums:
        """One step over the global batch.

        Raises:
            FloatingPointError: this rank's loss is NaN or infinite.
            DataError: a row weight is negative or not finite.
        """
        if self._contract.weight is not None:
            return self._weighted_step(batch)
        sums = self._no_rows()
        if batch.rows:
            with self._lone_row(batch.rows):
                output = forward(self._module, self._contract, batch.inputs)
            labels = self._objective.labels(batch)
            loss = self._objective.loss(output, labels)
            value = _finite(loss)
            share = batch.rows / batch.global_rows
            (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
            sums = self._sums(value * batch.rows, batch.rows, batch.rows, output, labels)
        self._apply()
        return sums

    def end_training(self, epoch: int) -> None:
        """Make buffers equal: running statistics of batch norms are averaged, others are rank 0's."""
        if self._communicator.size > 1:
            _average_statistics(self._module, self._communicator)
            broadcast_parameters(dict(self._module.named_buffers()))

    def eval_step(self, batch: Batch) -> Sums:
        """Loss and metrics of this rank's rows, in eval mode."""
        if not batch.rows:
            return self._no_rows()
        with self._evaluating():
            if self._contract.weight is None:
                labels = self._objective.labels(batch)
                output = forward(self._module, self._contract, batch.inputs)
                loss = float(self._objective.loss(output, labels))
                return self._sums(loss * batch.rows, batch.rows, batch.rows, output, labels)
            inputs, labels, weights = self._of_weight(batch, self._row_weights(batch))
            if not len(weights):
                return self._no_rows()
            output = forward(self._module, self._contract, inputs)
            losses = self._objective.row_losses(output, labels).double() * weights.double()
            return self._sums(
                float(losses.sum()), float(weights.sum(dtype=torch.float64)), len(weights), output, labels
            )

    def end_epoch(self, epoch: int, logs: dict[str, float]) -> dict[str, float]:
        """Step the scheduler. Logs the learning rate of the first parameter group in the finished epoch."""
        lr = float(self._optimizer.param_groups[0]["lr"])
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(logs.get(self._options.monitor, logs["loss"]))
        elif self._scheduler is not None:
            self._scheduler.step()
        return {"lr": lr}

    def communication_seconds(self) -> float:
        """Seconds that steps waited for the ring: communication that backward did not hide."""
        return float(self._optimizer.waited_seconds) + self._weight_seconds

    def save(self) -> bytes:
        """Weights, buffers, optimizer and scheduler, as JSON and raw tensors."""
        state = self._module.state_dict()
        return codec.pack(
            {
                "model": state,
                "buffers": {name: b for name, b in self._module.named_buffers() if name not in state},
                "optimizer": self._optimizer.state_dict(),
                "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            }
        )

    def load(self, state: bytes) -> None:
        """Restore what :meth:`save` returned. The same bytes on every rank give the same state."""
        saved = codec.unpack(state)
        self._module.load_state_dict(saved["model"], strict=True)
        buffers = dict(self._module.named_buffers())
        for name, value in saved["buffers"].items():
            buffers[name].copy_(value)
        load_optimizer_state(self._optimizer, saved["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(saved["scheduler"])

    def weights(self) -> bytes:
        """The module's weights and buffers as safetensors."""
        return weights_bytes(self._module)

    def facts(self) -> dict[str, Any]:
        """Version of torch, threads, number of parameters."""
        return {
            "framework": f"torch {torch.__version__}",
            "threads": torch.get_num_threads(),
            "parameters": sum(parameter.numel() for parameter in self._module.parameters()),
        }

    def close(self) -> None:
        """Remove the hooks, and give back the thread count and the random generators."""
        if hasattr(self, "_optimizer"):
            self._optimizer.release()
        if hasattr(self, "_generators"):
            self._generators.restore()
            torch.set_num_threads(self._threads_before)

    def _weighted_step(self, batch: Batch) -> Sums:
        weights = self._row_weights(batch)
        mine = float(weights.sum(dtype=torch.float64))
        handle = self._communicator.allreduce_async(np.array([mine]), name="row weights of a step")
        sums, total_loss = self._no_rows(), None
        if mine:
            inputs, labels, weights = self._of_weight(batch, weights)
            with self._lone_row(len(weights)):
                output = forward(self._module, self._contract, inputs)
            total_loss = (self._objective.row_losses(output, labels) * weights).sum()
            value = _finite(total_loss)
            sums = self._sums(value, mine, len(weights), output, labels)
        began = time.perf_counter()
        total = float(handle.wait()[0])
        self._weight_seconds += time.perf_counter() - began
        if not total:
            return sums
        if total_loss is not None:
            (total_loss / total).backward()  # type: ignore[no-untyped-call]
        self._apply()
        return sums

    def _of_weight(
        self, batch: Batch, weights: torch.Tensor
    ) -> tuple[dict[str, np.ndarray], list[torch.Tensor], torch.Tensor]:
        """Leave out the rows of weight 0."""
        labels = self._objective.labels(batch)
        kept = weights > 0
        if bool(kept.all()):
            return batch.inputs, labels, weights
        rows = kept.numpy()
        return (
            {name: array[rows] for name, array in batch.inputs.items()},
            [label[kept] for label in labels],
            weights[kept],
        )

    def _row_weights(self, batch: Batch) -> torch.Tensor:
        if batch.weight is None:
            raise DataError("the contract has a row weight and the batch has none")
        weights = torch.from_numpy(np.array(batch.weight, dtype=np.float32)).reshape(-1)
        if batch.rows and not bool((weights >= 0).all() & weights.isfinite().all()):
            assert self._contract.weight is not None
            names = ", ".join(column.name for column in self._contract.weight.columns)
            raise DataError(f"row weights must be finite and not negative; column {names!r} holds others")
        return weights

    def _apply(self) -> None:
        self._optimizer.synchronize()
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._module.parameters(), self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _no_rows(self) -> Sums:
        return Sums(dict.fromkeys(self.metric_names(), (0.0, 0.0)))

    def _sums(self, loss: float, weight: float, rows: int, output: Any, labels: list[torch.Tensor]) -> Sums:
        with torch.no_grad():
            metrics = self._objective.metrics(tree_map(_detached, output), labels)
        values = {name: (value * rows, float(rows)) for name, value in metrics.items()}
        return Sums({"loss": (loss, weight), **values})

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in modes:
                part.training = training

    @contextmanager
    def _lone_row(self, rows: int) -> Iterator[None]:
        """Let batch norm take a tail of one row: it has no statistics, so those of earlier rows are used."""
        norms = []
        if rows == 1 and self._options.batch_size > 1:
            norms = [
                part for part in self._module.modules() if isinstance(part, _BatchNorm) and part.training
            ]
        for norm in norms:
            norm.training = False
        try:
            yield
        finally:
            for norm in norms:
                norm.training = True


def _average_statistics(module: torch.nn.Module, communicator: Communicator) -> None:
    """Average the running mean and variance of every batch norm over the ranks."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            for kind in ("running_mean", "running_var"):
                value = getattr(part, kind)
                if value is not None:
                    array = value.detach().double().numpy()
                    mean = communicator.allreduce(array, op="average", name=f"batch norm {name}.{kind}")
                    value.copy_(torch.from_numpy(mean))


def _names(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]] | None:
    """Return the module's names when they cover the optimizer's parameters; a user may add others."""
    known = set(module.parameters())
    if all(parameter in known for group in optimizer.param_groups for parameter in group["params"]):
        return module.named_parameters()
    return None


def _finite(loss: torch.Tensor) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss is {value}")
    return value


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _fair_share(communicator: Communicator) -> int:
    """Return the cores of this host divided by the ranks on it, at least 1."""
    return max(1, len(os.sched_getaffinity(0)) // communicator.local_size)
