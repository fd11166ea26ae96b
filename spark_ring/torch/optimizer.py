"""Any torch optimizer, made to step with gradients of all ranks.

The optimizer itself is changed: its class becomes a subclass of what it was, with a ``step`` that waits for
the reduced gradients first. So its state, parameter groups, hooks and schedulers stay what they are, and
``isinstance`` still holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from spark_ring import world
from spark_ring.communicator import Communicator
from spark_ring.errors import ConfigError
from spark_ring.ops import ReduceOp
from spark_ring.torch.reducer import GradientReducer

__all__ = ["DistributedOptimizer"]

OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def DistributedOptimizer(
    optimizer: OptimizerT,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    op: ReduceOp | str = ReduceOp.Average,
    gradient_predivide_factor: float = 1.0,
    communicator: Communicator | None = None,
) -> OptimizerT:
    """Make an optimizer reduce gradients over all ranks before each step. Returns the same object.

    Reductions start while backward runs, as each gradient becomes ready. ``step()`` waits for them. Besides
    the usual methods the optimizer then has:

    * ``synchronize()``: wait for the reduced gradients now, for example to clip them. The next ``step()``
      uses them as they are and reduces nothing again.
    * ``skip_synchronize()``: a context in which ``step()`` does not wait; for code written that way.

    A rank on which a parameter got no gradient takes part with zeros. Every rank must step equally often.

    Args:
        optimizer: any torch optimizer, also with state, hooks or a scheduler.
        named_parameters: names by which ranks match gradients; ``model.named_parameters()``. Must name every
            parameter of the optimizer. Without it they are numbered by their place in the groups.
        backward_passes_per_step: backward passes whose gradients add up locally before one reduction.
            A step after fewer or more passes reduces what there is; ranks may differ in their number.
        op: Average or Sum.
        gradient_predivide_factor: gradients are divided by it before they are summed and multiplied by it
            afterwards; guards float16 sums against overflow. Average only.
        communicator: the ranks; the default one of this process if not given.

    Raises:
        ConfigError: a setting that cannot be used, a parameter without or with the same name as another, or
            an optimizer that is already distributed.
    """
    text = ReduceOp.of(op)
    _check(optimizer, text, backward_passes_per_step, gradient_predivide_factor)
    reducer = GradientReducer(
        _names_of(optimizer, named_parameters),
        communicator or world.current(),
        text,
        backward_passes_per_step,
        gradient_predivide_factor,
    )
    optimizer.__dict__["_reducer"] = reducer
    optimizer.__dict__["_skip_synchronize"] = False
    patched = optimizer.__dict__.get("step")
    cls: Any = type(optimizer)
    optimizer.__class__ = _distributed(cls)
    if patched is not None:  # a scheduler has put its own step on the object, in front of the class's
        optimizer.step = functools.wraps(patched)(functools.partial(_step, optimizer, patched))  # type: ignore[method-assign]
    return optimizer


class _Distributed:
    """The methods that a distributed optimizer has before those of its own class."""

    _reducer: GradientReducer
    _skip_synchronize: bool
    param_groups: list[dict[str, Any]]

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks."""
        self._reducer.synchronize(param for group in self.param_groups for param in group["params"])

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context ``step()`` uses the gradients as they are; call ``synchronize()`` first."""
        self._skip_synchronize = True
        try:
            yield
        finally:
            self._skip_synchronize = False

    @property
    def waited_seconds(self) -> float:
        """Seconds that steps have waited for gradients: communication that backward did not hide."""
        return self._reducer.waited

    def release(self) -> None:
        """Take the hooks off the parameters; gradients are reduced no more."""
        self._reducer.close()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients of all ranks (after each call of ``closure``, if given), then step."""
        return _step(self, super().step, closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Refused while they are being reduced."""
        if self._reducer.in_flight:
            raise RuntimeError(
                "zero_grad() was called after backward() and before step() or synchronize(): "
                "gradients are being reduced and would be lost"
            )
        self._reducer.forget()
        super().zero_grad(set_to_none)  # type: ignore[misc]


# torch wraps a class's step for profiling and step hooks unless it is marked as wrapped. What it calls is.
_Distributed.step.hooked = True  # type: ignore[attr-defined]


def _step(optimizer: Any, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
    reducer: GradientReducer = optimizer._reducer
    if closure is not None:

        @functools.wraps(closure)
        def reduced() -> Any:
            with torch.enable_grad():
                value = closure()
            optimizer.synchronize()
            return value

        result = step(reduced)
    else:
        if optimizer._skip_synchronize and reducer.in_flight:
            raise RuntimeError(
                "step() in skip_synchronize() while gradients are being reduced; call synchronize()"
            )
        if not optimizer._skip_synchronize and not reducer.done:
            optimizer.synchronize()
        result = step()
    reducer.forget()
    return result


@functools.cache
def _distributed(cls: Any) -> Any:
    return type(cls.__name__, (_Distributed, cls), {"__doc__": cls.__doc__, "__module__": cls.__module__})


def _names_of(
    optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Return parameter → name, for all parameters in the order of the groups."""
    params = [
        (f"{group_number}.{number}", param)
        for group_number, group in enumerate(optimizer.param_groups)
        for number, param in enumerate(group["params"])
    ]
    if named is None:
        return {param: f"param.{place}" for place, param in params}
    given: dict[torch.Tensor, str] = {}
    taken: set[str] = set()
    for name, param in named:
        if name in taken:
            raise ConfigError(f"named_parameters has the name {name!r} twice; ranks match gradients by name")
        taken.add(name)
        given[param] = name
    missing = [place for place, param in params if param not in given]
    if missing:
        raise ConfigError(
            f"named_parameters lacks {len(missing)} of the optimizer's {len(params)} parameters, the first "
            f"at (group.index) {missing[0]}; pass the named_parameters() of every module the optimizer "
            "trains, or leave the argument away"
        )
    return {param: given[param] for _, param in params}


def _check(optimizer: Any, op: str, passes: int, predivide: float) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"expected a torch optimizer, found {type(optimizer).__name__}")
    if isinstance(optimizer, _Distributed):
        raise ConfigError("this optimizer is already distributed; wrap it once")
    if op not in ("average", "sum"):
        raise ConfigError(f"op is {op!r}; gradients can be reduced by Average or Sum")
    if not isinstance(passes, int) or passes < 1:
        raise ConfigError(f"backward_passes_per_step is {passes!r}; it must be an integer of at least 1")
    if not predivide > 0:
        raise ConfigError(f"gradient_predivide_factor is {predivide!r}; it must be positive")
    if predivide != 1.0 and op != "average":
        raise ConfigError("gradient_predivide_factor works with op=Average only")
