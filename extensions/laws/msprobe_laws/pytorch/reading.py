"""What parameters and states of an optimizer of PyTorch hold around a step: some elements of large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from msprobe_collector.pytorch.optimizers import gradient_of
from msprobe_laws.formulas import FORMULAS
from msprobe_laws.observation import Array, Content
from msprobe_laws.optimizers import EMPTY, SAMPLE, WHOLE, Gradient, WatchedOptimizer
from msprobe_laws.pytorch.formulas import names_of_states
from msprobe_laws.pytorch.tensors import arrays_of, dtype_of, local_part, place_of, placements_of

#: Parameters of which all elements are looked at in a step, where that is wanted.
_IN_TURN = 4


class Reader:
    """Reads the same elements before and after one step.

    Attributes:
        items: the parameters.
        formula: see `formula_of`.
        samples: positions of the elements that are read of each; None for all.
    """

    def __init__(
        self, optimizer: Any, items: Sequence[Any], watched: WatchedOptimizer, formula: tuple[str, str, bool]
    ) -> None:
        """Read nothing yet; where the formula takes sums, all elements of some parameters, of others in each step."""
        self._optimizer, self.items, self.formula = optimizer, items, formula
        wants_whole = formula[0] in FORMULAS and FORMULAS[formula[0]].whole
        self.samples: list[torch.Tensor | None] = []
        for at, item in enumerate(items):
            local = local_part(item)
            is_turn = wants_whole and (at + watched.number) % len(items) < _IN_TURN
            is_large = local is not None and local.numel() > (WHOLE if is_turn else SAMPLE)
            self.samples.append(_sample_of(watched, item, local) if local is not None and is_large else None)

    def before(self, scale: float) -> tuple[list[Content], list[Gradient]]:
        """Return what parameters and states hold, and their gradients, which hold `scale` times what the step takes."""
        held = [gradient_of(item) for item in self.items]
        tensors: list[torch.Tensor | None] = []
        for item, gradient, sample in zip(self.items, map(local_part, held), self.samples):
            local = local_part(item)
            is_fitting = gradient is not None and local is not None and gradient.shape == local.shape
            tensors.append(_taken(gradient, sample) if is_fitting else None)
        contents, arrays = self._contents(tensors)
        gradients = []
        for item, gradient, array in zip(self.items, held, arrays):
            local = local_part(gradient)
            elements = None if gradient is None else EMPTY if array is None else array / scale
            is_term = any(placement.is_partial() for placement in placements_of(gradient))
            gradients.append(Gradient(elements, "" if local is None else dtype_of(local), identity_of(item), is_term))
        return contents, gradients

    def after(self, gradients: Sequence[Gradient]) -> list[Content]:
        """Return what parameters and states hold when the step is over, which may have written gradients as well."""
        contents, _ = self._contents([])
        names = self._names_of_states()
        for content, gradient, item in zip(contents, gradients, self.items):
            gradient.identity = identity_of(item)
            for key, value in self._named_states(item, names):
                if (local := local_part(value)) is not None:
                    content.state_places[key] = place_of(local, value)
        return contents

    def _contents(self, others: list[torch.Tensor | None]) -> tuple[list[Content], list[Array | None]]:
        """Return what the parameters hold, and the elements of other tensors, which are copied with them."""
        locals_of = [local_part(item) for item in self.items]
        values = [_taken(local, sample) for local, sample in zip(locals_of, self.samples)]
        arrays = arrays_of([*values, *others])
        states = self._states()
        contents = []
        for item, local, array, state in zip(self.items, locals_of, arrays, states):
            contents.append(Content(EMPTY if array is None else array, place_of(local, item), state))
        return contents, arrays[len(values) :]

    def _states(self) -> list[dict[str, Array]]:
        """Return elements of the states of each parameter, under PyTorch's names."""
        names = self._names_of_states()
        keys: list[tuple[int, str]] = []
        tensors: list[torch.Tensor | None] = []
        states: list[dict[str, Array]] = [{} for _ in self.items]
        for at, (item, sample) in enumerate(zip(self.items, self.samples)):
            local = local_part(item)
            for key, value in self._named_states(item, names):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    states[at][key] = np.array([float(value)])
                    continue
                state = local_part(value)
                is_like = state is not None and local is not None and state.shape == local.shape
                if state is not None and (is_like or state.numel() <= WHOLE):
                    keys.append((at, key))
                    tensors.append(_taken(state, sample if is_like else None))
        for (at, key), array in zip(keys, arrays_of(tensors)):
            if array is not None:
                states[at][key] = array
        return states

    def _names_of_states(self) -> Mapping[str, str]:
        return names_of_states(self._optimizer, self.formula[0], is_own=self.formula[2])

    def _named_states(self, item: Any, names: Mapping[str, str]) -> list[tuple[str, Any]]:
        state = self._optimizer.state.get(item) or {}
        return [(names.get(key, key), value) for key, value in state.items()]


def identity_of(parameter: Any) -> tuple[int, int] | None:
    """Return where a gradient is, and how often it was written; None where that is not known."""
    gradient = local_part(parameter.grad)
    if gradient is None or gradient.is_inference():
        return None
    return gradient.data_ptr(), parameter.grad._version


def _taken(local: torch.Tensor | None, sample: torch.Tensor | None) -> torch.Tensor | None:
    if local is None:
        return None
    return local.reshape(-1) if sample is None else torch.take(local, sample)


def _sample_of(watched: WatchedOptimizer, item: Any, local: torch.Tensor) -> torch.Tensor:
    sample: torch.Tensor | None = watched.samples.get(id(item))
    if sample is None or sample.device != local.device:
        generator = np.random.default_rng((local.numel(), watched.number, len(watched.samples)))
        chosen = np.sort(generator.integers(0, local.numel(), SAMPLE))
        sample = watched.samples[id(item)] = torch.from_numpy(chosen).to(local.device)
    return sample
