"""What can be wrong in a training whose script nobody here wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from quality.accounting.foreign.training import Change, Training
from quality.accounting.foreign.watching import Watch

#: Calls that a change may be named for are kept as those of this place.
CHANGE = "change"


def edit(change: Callable[[Training], None]) -> Change:
    """Network or batch are otherwise."""

    def changed(training: Training, watch: Watch) -> AbstractContextManager[None]:
        with torch.no_grad():
            change(training)
        return nullcontext()

    return changed


def parameter(name: str, *, at: int = 5) -> Change:
    """One element is off."""

    def change(training: Training) -> None:
        flat = training.net.get_parameter(name).view(-1)
        flat[at % flat.numel()] += 0.3

    return edit(change)


def checkpoint(prefix: str) -> Change:
    """The parameters below a Module are those of another run."""

    def change(training: Training) -> None:
        for one in training.net.get_submodule(prefix).parameters():
            one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(3)) * 0.05)

    return edit(change)


def frozen(name: str) -> Change:
    """A parameter takes no gradient."""
    return edit(lambda training: training.net.get_parameter(name).requires_grad_(False))


def batch(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """A tensor of the batch is otherwise."""
    return edit(lambda training: training.batch.update({name: change(training.batch[name].clone())}))


def one_token(ids: Tensor) -> Tensor:
    """One integer is another one."""
    ids.view(-1)[3] = ids.view(-1)[3] % 7 + 5
    return ids


def one_pixel(pixels: Tensor) -> Tensor:
    """One value is another one."""
    pixels.view(-1)[33] += 2.5
    return pixels


def settings(kind: str, number: int, **values: Any) -> Change:
    """A Module, by its class and number, has other attributes; a callable value gets the old one."""

    @contextmanager
    def change(training: Training, watch: Watch) -> Iterator[None]:
        module = training.layers(kind)[number]
        for name, value in values.items():
            old = getattr(module, name)
            setattr(module, name, value(old) if callable(value) else value)
            assert old != getattr(module, name), (kind, number, name, old)
        with _marked(module, watch):
            yield

    return change


@contextmanager
def _marked(module: Any, watch: Watch) -> Iterator[None]:
    """Calls inside the Module may be named."""
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        with watch.at(CHANGE):
            return forward(*args, **kwargs)

    module.forward = run
    try:
        yield
    finally:
        module.forward = forward


def other_class(kind: str, number: int, make: Callable[[], Any]) -> Change:
    """A Module without parameters is one of another class."""

    @contextmanager
    def change(training: Training, watch: Watch) -> Iterator[None]:
        module, other = training.layers(kind)[number], make()
        module.forward = other.forward
        with _marked(module, watch):
            yield

    return change


def function(name: str, number: int, change: Callable[..., Any]) -> Change:
    """One call of a function, by its full name: `change` gets the original and its arguments.

    Those of torch that are written in Python, and methods of Tensor, PyTorch looks up by name to hand them to a mode:
    they cannot be taken.
    """

    @contextmanager
    def changed(training: Training, watch: Watch) -> Iterator[None]:
        original, count = resolve_name(name), iter(range(10**6))

        def run(*args: Any, **kwargs: Any) -> Any:
            if next(count) != number:
                return original(*args, **kwargs)
            with watch.at(CHANGE):
                return change(original, *args, **kwargs)

        with mock.patch(name.replace(":", "."), run):
            yield
        if next(count) <= number:
            raise ValueError(f"{name} is called {next(count) - 1} times")

    return changed


def autocast(kind: str, number: int) -> Change:
    """A Module runs under autocast."""

    @contextmanager
    def change(training: Training, watch: Watch) -> Iterator[None]:
        module = training.layers(kind)[number]
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            with watch.at(CHANGE), torch.autocast("cpu", torch.bfloat16):
                return forward(*args, **kwargs)

        module.forward = run
        try:
            yield
        finally:
            module.forward = forward

    return change


def after(kind: str, number: int, act: Callable[[Tensor, Watch], None]) -> Change:
    """Something that nothing records is done with the output of a Module."""

    @contextmanager
    def change(training: Training, watch: Watch) -> Iterator[None]:
        module = training.layers(kind)[number]
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                act(result[0] if isinstance(result, tuple) else result, watch)
            return result

        module.forward = run
        try:
            yield
        finally:
            module.forward = forward

    return change


def other_gradient(value: Tensor, watch: Watch) -> None:
    """A hook makes the gradient 3 % larger, and nothing sees it."""

    def larger(gradient: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return gradient * 1.03

    watch.note(CHANGE, watch.call_of(value.grad_fn))
    value.register_hook(larger)


def recorded_gradient(value: Tensor, watch: Watch) -> None:
    """The same by a call that is recorded, which is what may be named."""

    def larger(gradient: Tensor) -> Tensor:
        with watch.at(CHANGE):
            return gradient * 1.03

    value.register_hook(larger)


def through_data(value: Tensor, watch: Watch) -> None:
    """The values change, and the version does not."""
    value.data.mul_(1.02)
    watch.next_at(CHANGE)


def through_numpy(value: Tensor, watch: Watch) -> None:
    """The memory is written to from outside of PyTorch."""
    memory = value.detach().numpy()
    memory[..., 0] += 0.05
    watch.next_at(CHANGE)
