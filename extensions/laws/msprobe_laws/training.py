"""Laws on the parts of a training, which the observer of a framework checks where they stand.

They compare objects and not numbers: whether a gradient is the one of the step before, whether two names are one
parameter. Each stands here with its sentence and source; `Finding`s bear its name.
"""

from __future__ import annotations

from dataclasses import dataclass

FRESH = "gradients-are-fresh"
IN_AN_OPTIMIZER = "in-an-optimizer"
EACH_IN_ONE = "in-one-optimizer"
STAYS_TRAINABLE = "stays-trainable"
GRADIENTS_ARRIVE = "gradients-arrive"
SCALE_REMOVED = "scale-removed"
TIES_KEPT = "ties-kept"
BUFFERS_KEPT = "buffers-kept"
TRAINING_MODE = "training-mode"
EMA_DECAY = "ema-decay"
CLIP_NORM = "clip-norm"
SCHEDULES = "schedules-advance"
BATCHES_DIFFER = "batches-differ"
REPLICAS = "replicas-agree"
RANKS_DRAW = "ranks-draw-differently"
RESUME = "resume-continues"
#: Laws that need the calls of models.
OF_MODELS = (IN_AN_OPTIMIZER, GRADIENTS_ARRIVE, TRAINING_MODE, TIES_KEPT, BUFFERS_KEPT)


@dataclass(frozen=True, slots=True)
class Statement:
    """A law that is checked on objects.

    Attributes:
        name: of the law.
        sentence: what holds in every training.
        source: who says so.
        tolerance: of the comparison.
    """

    name: str
    sentence: str
    source: str
    tolerance: str = "none: it holds exactly"


STATEMENTS = (
    Statement(
        FRESH,
        "A step gets the gradients that were computed since the step before, all and once, and nothing of that one.",
        "torch.optim.Optimizer.zero_grad; autograd adds to what .grad holds",
        "none in training; in a dump 2 (n + 4) units of the coarsest dtype of the n gradients that are added up",
    ),
    Statement(
        IN_AN_OPTIMIZER,
        "Every parameter that gets a gradient is in an optimizer.",
        "TrainCheck (OSDI 2025), silent errors of parameters that are never updated",
    ),
    Statement(
        EACH_IN_ONE,
        "No parameter is updated by two optimizers in turn.",
        "torch.optim refuses it within one optimizer; Megatron #4641",
    ),
    Statement(
        STAYS_TRAINABLE,
        "A parameter that an optimizer has trained keeps requires_grad.",
        "torch.Tensor.requires_grad: the optimizer passes over it without a word",
    ),
    Statement(
        GRADIENTS_ARRIVE,
        "A parameter that the forward used, and whose layer's output was used, has a gradient.",
        "the chain rule; torch.Tensor.detach, torch.no_grad",
    ),
    Statement(
        SCALE_REMOVED,
        "The scale of a loss scaler is taken out before a step, and before clipping.",
        "Micikevicius et al., arXiv:1710.03740, section 3.2; torch.amp.GradScaler.unscale_",
    ),
    Statement(
        TIES_KEPT,
        "Parameters that are tied stay one parameter.",
        "Press and Wolf, arXiv:1608.05859; the model's config",
    ),
    Statement(BUFFERS_KEPT, "A step leaves the dtype and the device of buffers.", "torch.nn.Module.register_buffer"),
    Statement(
        TRAINING_MODE,
        "A model that is trained in training mode is not trained in eval mode later.",
        "torch.nn.Module.train: batch norm and dropout depend on it",
    ),
    Statement(
        EMA_DECAY,
        "An average of parameters is decay times itself and 1 - decay times the parameter.",
        "torch.optim.swa_utils.get_ema_multi_avg_fn; Izmailov et al., arXiv:1803.05407",
        "8 units of float32 of the summands (of bfloat16 for half dtypes)",
    ),
    Statement(
        SCHEDULES,
        "A schedule of learning rates advances after a step of its optimizer, and once for each step that is taken.",
        "torch.optim: how to adjust the learning rate; scheduler.step() comes after optimizer.step()",
    ),
    Statement(
        REPLICAS,
        "Replicas of a parameter are equal on all ranks after a step.",
        "Li et al., VLDB 2020 (PyTorch Distributed): replicas begin alike and get the same gradients",
    ),
    Statement(
        RANKS_DRAW,
        "Ranks that train on different data draw different dropout masks.",
        "Srivastava et al., JMLR 15 (2014); Megatron seeds its ranks differently for it",
    ),
    Statement(
        RESUME,
        "A training that is resumed has the state that was saved, and goes on as it would have without.",
        "Megatron #6858 and #6920, torchtitan #1702",
    ),
)
