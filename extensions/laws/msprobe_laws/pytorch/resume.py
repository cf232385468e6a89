"""Whether a training that is resumed goes on as the one that was saved.

When `torch.save` writes a file, digests of all that a training consists of are kept under the folder of the laws, and
once more when the next step begins. When that file is loaded, by this process or a later one, the first step after it
is compared with both: the part that differs is named.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash

from msprobe_collector.pytorch.optimizers import group_settings
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.law import Step, Unchecked, Violation
from msprobe_laws.pytorch.tensors import local_part, some
from msprobe_laws.replacing import Replacing, argument
from msprobe_laws.session import LawSession
from msprobe_laws.training import RESUME

#: Elements of each tensor that stand for it.
_ELEMENTS = 512
_MOST_BYTES = 1 << 26
#: Steps after saving whose learning rates are kept.
_RATES = 4


class ResumeLaw:
    """Keeps what a saved training consists of, and compares a resumed one with it."""

    def __init__(
        self, session: LawSession, guard: Guard, rank: Callable[[], int | None], scale: Callable[[], float | None]
    ) -> None:
        """Watch nothing yet; `scale` gives the scale of the loss."""
        self._session, self._guard, self._rank, self._scale = session, guard, rank, scale
        self._swaps = MethodSwaps()
        #: Optimizers that have stepped, with the names of their parameters, by their own names.
        self._optimizers: dict[str, tuple[Any, Mapping[int, str]]] = {}
        #: Files that were written since the last step, and what is kept of each.
        self._written: list[tuple[Path, dict[str, Any]]] = []
        #: What is to be compared with the next step.
        self._loaded: dict[str, Any] | None = None
        self._random = self._batch = ""
        self._has_drawn = False
        #: Learning rates of the steps after the file was saved, those that are to be compared yet.
        self._rates_then: list[Any] = []
        self._resumed_steps = 0

    def install(self) -> None:
        """Watch from now on."""
        replacing = Replacing(self._guard, lambda: self._guard.activity.is_inside)
        self._swaps.put(torch, "save", replacing.after("a checkpoint is saved", self._saved))
        self._swaps.put(torch, "load", replacing.after("a checkpoint is loaded", self._was_loaded))

    def uninstall(self) -> None:
        """Watch no more."""
        self._swaps.uninstall()

    def draws(self) -> None:
        """Note that the training draws random numbers in its forward."""
        self._has_drawn = True

    def model_begins(self, batch: str) -> None:
        """Note that a model is called for the first time since a step, with a batch of this fingerprint."""
        if any("next" not in kept for _, kept in self._written) or self._loaded is not None:
            self._random, self._batch = _random_state(), batch

    def step_begins(self, step: Step) -> None:
        """Compare a step with that after saving."""
        self._optimizers[step.name] = weakref.ref(step.optimizer), step.names
        for path, kept in self._written:
            if "next" not in kept:
                kept["next"] = self._now()
            kept.setdefault("rates", []).append([step.name.partition(".")[0], _rates(step.optimizer)])
            _write(path, kept)
        self._written = [entry for entry in self._written if len(entry[1]["rates"]) < _RATES]
        kept_before, self._loaded = self._loaded, None
        if kept_before is not None:
            self._compare(kept_before, step)
            self._rates_then = list(kept_before.get("rates") or ())
        self._compare_rates(step.optimizer, step.name)
        self._random = self._batch = ""

    def _saved(self, result: None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        path = _path_of(argument(args, kwargs, 1, "f"))
        if path is None or not self._session.journal.is_ours:
            return
        kept = {
            "schema": 1,
            "file": str(path),
            "bytes": path.stat().st_size,
            "script": Path(sys.argv[0]).name if sys.argv else "",
            "has_optimizer": _holds_optimizer(argument(args, kwargs, 0, "obj")),
            "now": self._now(),
        }
        place = self._place(path)
        _write(place, kept)
        self._written = [entry for entry in self._written if entry[0] != place] + [(place, kept)]

    def _was_loaded(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        path = _path_of(argument(args, kwargs, 0, "f"))
        kept = None if path is None else _read(self._place(path))
        if (
            path is not None
            and kept is not None
            and kept.get("bytes") == path.stat().st_size
            and kept["now"]["optimizers"]
        ):
            self._loaded = kept

    def _place(self, path: Path) -> Path:
        digest = xxhash.xxh64(str(path).encode("utf-8", "surrogateescape")).hexdigest()
        return self._session.journal.folder / "saved" / f"rank{self._rank() or 0}-{digest}.json"

    def _now(self) -> dict[str, Any]:
        """Return the digests of what the training consists of."""
        optimizers = {}
        for name, (reference, names) in self._optimizers.items():
            if (optimizer := reference()) is not None:
                optimizers[name] = _digests(optimizer, names)
        return {"optimizers": optimizers, "random": self._random, "batch": self._batch, "scale": self._scale()}

    def _compare(self, kept: Mapping[str, Any], step: Step) -> None:
        here = _digests(step.optimizer, step.names)
        then = kept.get("next") or {}
        name, kind = step.name, type(step.optimizer).__name__
        saved = [
            (key, entry)
            for key, entry in kept["now"]["optimizers"].items()
            if key.partition(".")[0] == kind and entry["parameters"].keys() == here["parameters"].keys()
        ]
        if not saved:
            self._session.say(
                RESUME, name, Unchecked("the file that was loaded was saved with other optimizers or parameters")
            )
            return
        key, before = saved[-1]
        after = (then.get("optimizers") or {}).get(key)
        wrong = _differing(before["parameters"], here["parameters"])
        if len(wrong) == len(here["parameters"]):
            self._session.say(RESUME, name, Unchecked("another model was loaded than the one that was saved with it"))
            return
        findings = []
        if wrong:
            findings.append(self._finding(wrong, "it is not what was saved", kept))
        states = _differing(before["states"], here["states"])
        if states and not here["states"]:
            if kept.get("script") == (Path(sys.argv[0]).name if sys.argv else ""):
                was = "were saved" if kept.get("has_optimizer") else "were not saved with the parameters"
                message = f"the moments of {kind} {was}, and the training goes on without them"
                findings.append(self._finding(list(here["parameters"]), message, kept))
        elif states:
            findings.append(self._finding(states, "the state is not what was saved", kept))
        has_moments = bool(here["states"]) or not before["states"]
        groups = zip((after or before)["settings"], here["settings"]) if has_moments else ()
        for number, (was, now) in enumerate(groups):
            changed = [item for item in was if item in now and was[item] != now[item]]
            changed = [item for item in changed if after is not None or item not in ("lr", "momentum", "betas")]
            for item in changed:
                message = f"{item} is {now[item]} after loading and was {was[item]} in the step after saving"
                findings.append(Violation(RESUME, f"group {number}", message))
        if then:
            findings += self._others(then, kept)
        self._session.say(RESUME, name, findings)

    def _compare_rates(self, optimizer: Any, name: str) -> None:
        """Compare the learning rates of the steps after loading with those after saving, but for the first."""
        if not self._rates_then:
            return
        kind, rates = self._rates_then.pop(0)
        if kind != name.partition(".")[0]:
            self._rates_then.clear()
            return
        self._resumed_steps += 1
        if self._resumed_steps > 1 and rates != (now := _rates(optimizer)):
            self._rates_then.clear()
            message = f"lr is {now} in step {self._resumed_steps} after loading and was {rates} in that after saving"
            self._session.say(RESUME, name, [Violation(RESUME, "group 0", message)])

    def _others(self, then: Mapping[str, Any], kept: Mapping[str, Any]) -> list[Violation]:
        """Return what differs beside the optimizer between the step after saving and the step after loading."""
        findings = []
        scale = self._scale()
        if then.get("scale") is not None and scale is not None and then["scale"] != scale:
            message = f"the loss scale is {scale:g} after loading and was {then['scale']:g} in the step after saving"
            findings.append(Violation(RESUME, "loss scaler", message))
        if then.get("batch") and self._batch and then["batch"] != self._batch:
            message = (
                "the step after loading gets another batch than the step after saving got: the data begin elsewhere"
            )
            findings.append(Violation(RESUME, "data position", message))
        elif then.get("random") and self._random and then["random"] != self._random and self._has_drawn:
            message = "random numbers go on from another state than after saving, and the model draws some (dropout)"
            findings.append(Violation(RESUME, "random state", message))
        return findings

    def _finding(self, names: list[str], message: str, kept: Mapping[str, Any]) -> Violation:
        return Violation(RESUME, names[0], f"{message} ({Path(kept['file']).name})", None, tuple(names[1:]))


def _path_of(file: Any) -> Path | None:
    return Path(os.path.abspath(file)) if isinstance(file, (str, os.PathLike)) else None


def _rates(optimizer: Any) -> list[Any]:
    return [settings.get("lr") for settings in group_settings(optimizer)]


def _digests(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    parameters, states = {}, {}
    for group in optimizer.param_groups:
        for item in group["params"]:
            name = names.get(id(item), "")
            parameters[name] = _digest(item)
            for key, value in (optimizer.state.get(item) or {}).items():
                if value is not None:
                    states[f"{name}.{key}"] = _digest(value)
    return {"parameters": parameters, "states": states, "settings": group_settings(optimizer)}


def _digest(value: Any) -> str:
    local = local_part(value)
    if local is None:
        return repr(value)[:40] if isinstance(value, (int, float, str, bool)) else ""
    return xxhash.xxh64(some(local, _ELEMENTS).double().cpu().numpy().tobytes()).hexdigest()


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in before if before[name] != now.get(name)]


def _random_state() -> str:
    """Return a digest of PyTorch's generators, from which dropout draws."""
    digest = xxhash.xxh64(torch.get_rng_state().numpy().tobytes())
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        digest.update(cuda.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def _holds_optimizer(obj: Any, depth: int = 0) -> bool:
    """Return whether what is saved holds the state of an optimizer."""
    if not isinstance(obj, Mapping) or depth > 3:
        return False
    if "param_groups" in obj and "state" in obj:
        return True
    return any(_holds_optimizer(item, depth + 1) for item in list(obj.values())[:64])


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(kept), encoding="utf-8")
    os.replace(temporary, path)


def _read(path: Path) -> dict[str, Any] | None:
    """Return what was kept; None where nothing was, or not by this version."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        is_known = kept["schema"] == 1 and isinstance(kept["now"]["optimizers"], dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return kept if is_known else None
