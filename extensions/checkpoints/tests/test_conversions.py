"""Right and wrong conversions: one rule of names and layouts must hold for all layers, experts and ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe_checkpoints.comparison import ComparedTensor, compare
from msprobe_checkpoints.folders import read_checkpoint
from msprobe_checkpoints.report import sentences

torch = pytest.importorskip("torch")

State = dict[str, Any]
Sides = tuple[Any, Any]


def model(layers: int = 4, *, experts: int = 0, bias: bool = False, ones: bool = False) -> State:
    """A transformer of 4 heads in 2 groups, with names as HuggingFace's."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random)

    tensors = {"model.embed_tokens.weight": normal(40, 32), "lm_head.weight": normal(40, 32)}
    for index in range(layers):
        prefix = f"model.layers.{index}"
        for name, rows in (("q", 32), ("k", 16), ("v", 16), ("o", 32)):
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = normal(rows, 32)
            if bias and name != "o":
                tensors[f"{prefix}.self_attn.{name}_proj.bias"] = normal(rows)
        for expert in range(experts) or ("",):
            mlp = f"{prefix}.mlp.experts.{expert}" if experts else f"{prefix}.mlp"
            tensors |= {f"{mlp}.{name}_proj.weight": normal(48, 32) for name in ("gate", "up")}
            tensors[f"{mlp}.down_proj.weight"] = normal(32, 48)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(32) if ones else 1 + 0.1 * normal(32)
    return tensors


def renamed(state: State, *changes: tuple[str, str]) -> State:
    """The tensors under names that are changed by patterns, one after the other."""
    tensors = {}
    for name, tensor in state.items():
        for pattern, new in changes:
            name = re.sub(pattern, new, name)
        tensors[name] = tensor
    return tensors


META = (
    (r"model\.layers", "layers"),
    (r"self_attn\.(.)_proj", r"attention.w\1"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"model\.embed_tokens", "tok_embeddings"),
    (r"lm_head", "output"),
)


def exchanged(state: State, *patterns: tuple[str, str]) -> State:
    """The tensors in which what a name says first and what it says then have changed places."""
    for name, other in patterns:
        state = renamed(
            state, (rf"{name}", "\0"), (rf"{other}", name.replace("\\", "")), ("\0", other.replace("\\", ""))
        )
    return state


def mapped(state: State, change: Callable[[Any], Any]) -> State:
    return {name: change(tensor) for name, tensor in state.items()}


def part(state: State, pattern: str) -> State:
    """The tensors of which the names have a pattern."""
    return {name: tensor for name, tensor in state.items() if re.search(pattern, name)}


def changed(state: State, name: str, change: Callable[[Any], Any]) -> State:
    return state | {name: change(state[name]).contiguous()}


def grouped(parts: list[Any], groups: int) -> Any:
    cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(cut, 1).reshape(-1, *parts[0].shape[1:])


def megatron(state: State, *, order: str = "qkv", gated: tuple[str, str] = ("gate", "up"), groups: int = 2) -> State:
    """The same model with names and layouts as Megatron's."""
    tensors = renamed(
        {name: tensor for name, tensor in state.items() if not re.search(r"[qkv]_proj|gate_proj|up_proj", name)},
        (r"model\.layers", "decoder.layers"),
        (r"self_attn\.o_proj", "self_attention.linear_proj"),
        (r"mlp\.down_proj", "mlp.linear_fc2"),
        (r"experts\.(\d+)\.down_proj\.weight", r"experts.linear_fc2.weight\1"),
        (r"input_layernorm\.", "self_attention.linear_qkv.layer_norm_"),
        (r"post_attention_layernorm\.", "mlp.linear_fc1.layer_norm_"),
        (r"model\.embed_tokens", "embedding.word_embeddings"),
        (r"lm_head", "output_layer"),
    )
    for name in state:
        prefix = name.replace("model.layers", "decoder.layers")
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{role}_proj")] for role in order]
            tensors[prefix.replace("self_attn.q_proj", "self_attention.linear_qkv")] = grouped(parts, groups)
        elif "gate_proj" in name:
            parts = [state[name.replace("gate", role)] for role in gated]
            new = re.sub(r"experts\.(\d+)\.gate_proj\.weight", r"experts.linear_fc1.weight\1", prefix)
            tensors[new.replace("gate_proj", "linear_fc1")] = torch.cat(parts)
    return tensors


def tensor_parallel(state: State, ranks: int = 2) -> list[State]:
    """The ranks of a model with names as Megatron's."""
    tensors: list[State] = [{} for _ in range(ranks)]
    for name, tensor in state.items():
        for rank, held in enumerate(tensors):
            if re.search(r"linear_fc1\.weight", name):
                part = torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
            elif re.search(r"linear_proj|linear_fc2", name):
                part = tensor.chunk(ranks, 1)[rank]
            else:
                part = tensor if "layer_norm" in name else tensor.chunk(ranks)[rank]
            held[name] = part.clone()
    return tensors


def stages(state: State) -> list[State]:
    """Two stages of a pipeline that number their two layers from 0."""
    tensors: list[State] = [{}, {}]
    for name, tensor in state.items():
        match = re.search(r"layers\.(\d+)", name)
        stage, local = divmod(int(match[1]), 2) if match else (int("output" in name), 0)
        tensors[stage][name.replace(match[0], f"layers.{local}") if match else name] = tensor
    return tensors


def stacked(state: State, *, is_turned: bool = True) -> State:
    """The experts of each layer in two tensors."""
    tensors = {name: tensor for name, tensor in state.items() if "experts" not in name}
    for index in range(4):
        prefix = f"model.layers.{index}.mlp.experts"
        held = [
            [state[f"{prefix}.{number}.{name}_proj.weight"] for name in ("gate", "up", "down")] for number in range(4)
        ]
        pairs = {
            "gate_up_proj": [torch.cat(expert[:2]) for expert in held],
            "down_proj": [tensor[2] for tensor in held],
        }
        for name, several in pairs.items():
            whole = torch.stack(several)
            tensors[f"{prefix}.{name}"] = whole.transpose(1, 2).contiguous() if is_turned else whole
    return tensors


def rotated(weight: Any, heads: int) -> Any:
    """Rows of halves of heads in turns, as interleaved rotary embeddings have them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def rotary(state: State, pattern: str = r"\.w[qk]\.") -> State:
    heads = {"q": 4, "k": 2}
    return {
        name: rotated(tensor, heads[re.search(r"w([qk])", name)[1]]) if re.search(pattern, name) else tensor  # type: ignore[index]
        for name, tensor in state.items()
    }


def conv1d(layers: int) -> State:
    """A model as GPT-2's, whose weights are transposed."""
    random = torch.Generator().manual_seed(0)
    shapes = {"attn.c_attn": (32, 96), "attn.c_proj": (32, 32), "mlp.c_fc": (32, 128), "mlp.c_proj": (128, 32)}
    return {
        f"h.{index}.{name}.weight": torch.randn(shape, generator=random)
        for index in range(layers)
        for name, shape in shapes.items()
    } | {"wte.weight": torch.randn(40, 32, generator=random)}


def linear(state: State, *but: str) -> State:
    turned = mapped(part(state, rf"^(?!{'|'.join(('wte', *but))})"), lambda tensor: tensor.t().contiguous())
    return renamed(state | turned, ("^", "transformer."))


def kernels() -> State:
    """Convolutions, of which the first has as many inputs as its window has rows."""
    random = torch.Generator().manual_seed(0)
    shapes = [(8, 3, 3, 3), (16, 8, 3, 3), (32, 16, 3, 3)]
    return {f"layers.{index}.conv.weight": torch.randn(shape, generator=random) for index, shape in enumerate(shapes)}


def permuted(state: State, *axes: int) -> State:
    return mapped(state, lambda tensor: tensor.permute(axes).contiguous())


def lstm() -> State:
    torch.manual_seed(0)
    return {f"rnn.{name}": tensor for name, tensor in torch.nn.LSTM(8, 8, 2).state_dict().items()}


def onnx(state: State, but: str = "none") -> State:
    """Gates in the order of ONNX, and names of its own."""
    order = {name: (0, 1, 2, 3) if but in name else (0, 3, 1, 2) for name in state}
    made = {name: torch.cat([tensor.chunk(4)[gate] for gate in order[name]]) for name, tensor in state.items()}
    return renamed(made, ("rnn.weight_ih", "lstm.W"), ("rnn.weight_hh", "lstm.R"), ("rnn.bias", "lstm.B"))


def in_turn(state: State) -> list[State]:
    """Two ranks that have a layer of each half of the model in turn."""
    tensors: list[State] = [{}, {}]
    for name, tensor in state.items():
        layer = int((re.findall(r"layers\.(\d+)", name) or ["0"])[0])
        tensors[layer % 2][f"model{layer // 2}.{re.sub('layers.[0-9]', 'layers.0', name)}"] = tensor
    return tensors


def by_rows(state: State, ranks: int = 6) -> list[State]:
    """Ranks of which the last may have no rows."""
    parts = {name: tensor.chunk(ranks) for name, tensor in state.items()}
    return [
        {k: tensor[rank] if rank < len(tensor) else state[k][:0] for k, tensor in parts.items()}
        for rank in range(ranks)
    ]


def by_names(state: State) -> State:
    """An optimizer with names in place of numbers."""
    states = dict(zip(state["model"], state["optimizer"]["state"].values()))
    return {"model": state["model"], "optimizer": {"state": states}}


def quantized(state: State) -> State:
    tensors = {}
    for name, tensor in state.items():
        if "proj" in name:
            scale = tensor.abs().amax(1, keepdim=True) / 127
            tensors |= {name: torch.round(tensor / scale).to(torch.int8), f"{name}_scale": scale}
        else:
            tensors[name] = tensor
    return tensors


def training(order: list[int], *, names: bool = True) -> State:
    """A model and its optimizer, which has the parameters in this order."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(len(order) // 2)])
    parameters = [list(network.named_parameters())[place] for place in order]
    optimizer = torch.optim.AdamW(parameters if names else [parameter for _, parameter in parameters])
    network(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    return {"model": network.state_dict(), "optimizer": optimizer.state_dict()}


def tied() -> State:
    """A model whose last layer has the weight of the first one, and its optimizer, which has it once."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(*[torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
    network[2].weight = network[0].weight
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    return {"model": network.state_dict(), "optimizer": optimizer.state_dict()}


def moved(state: State, order: list[int]) -> State:
    """Other names of the parameters, and states of an optimizer that are those of other parameters."""
    groups = [
        {key: value for key, value in group.items() if key != "param_names"}
        for group in state["optimizer"]["param_groups"]
    ]
    states = {index: state["optimizer"]["state"][other] for index, other in enumerate(order)}
    network = {f"net.fc{name[0]}{name[1:]}": tensor for name, tensor in state["model"].items()}
    return {"model": network, "optimizer": {"state": states, "param_groups": groups}}


def padded(state: State, *names: str) -> State:
    return state | {name: torch.cat([state[name], torch.zeros(8, 32)]) for name in names}


def through(name: str, change: Callable[[list[State]], None], state: State) -> list[State]:
    tensors = tensor_parallel(megatron(state))
    change([held for held in tensors if name in held])
    return tensors


def exchange(name: str) -> Callable[[list[State]], None]:
    def change(ranks: list[State]) -> None:
        ranks[0][name], ranks[1][name] = ranks[1][name], ranks[0][name]

    return change


M, MOE, ONE, BIAS, ONES = model(), model(experts=4), model(1), model(bias=True), model(ones=True)
TIED = M | {"lm_head.weight": M["model.embed_tokens.weight"].clone()}
K1, V1, O1 = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "kvo")
LAYERS = (r"layers\.2\.", r"layers\.3\.")
EXPERTS = (r"layers\.1\.mlp\.experts\.0\.", r"layers\.1\.mlp\.experts\.1\.")
ORDER = list(range(6))
K = "layers.1.conv.weight"
PROJ = "decoder.layers.1.self_attention.linear_proj.weight"
NORM = "decoder.layers.2.mlp.linear_fc1.layer_norm_weight"
LARGE = M | {"lm_head.weight": 1e5 * M["lm_head.weight"]}
OTHER = NORM.replace("2", "1", 1)
BUFFERS = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.rand(4), "model.position_ids": torch.arange(9)}

RIGHT: dict[str, Callable[[], Sides]] = {
    "fused, interleaved by groups": lambda: (megatron(M), M),
    "fused, with biases": lambda: (megatron(BIAS), BIAS),
    "norms that are all one": lambda: (megatron(ONES), ONES),
    "one layer": lambda: (megatron(ONE), ONE),
    "other names": lambda: (renamed(M, *META), M),
    "another rotary embedding": lambda: (rotary(renamed(M, *META)), M),
    "Conv1D": lambda: (linear(conv1d(3)), conv1d(3)),
    "Conv1D of one layer": lambda: (linear(conv1d(1)), conv1d(1)),
    "all of a kind transposed": lambda: (
        renamed(M | mapped(part(M, "o_proj"), lambda tensor: tensor.t().contiguous()), ("self_attn", "attn")),
        M,
    ),
    "experts as grouped matrices": lambda: (megatron(MOE), MOE),
    "experts stacked": lambda: (stacked(MOE, is_turned=False), MOE),
    "experts stacked and transposed": lambda: (stacked(MOE), MOE),
    "tied parameters saved once": lambda: (part(megatron(TIED), "^(?!output)"), TIED),
    "buffers left out": lambda: (M, M | BUFFERS),
    "rounded to bfloat16": lambda: (mapped(megatron(M), torch.Tensor.bfloat16), M),
    "tensor parallel": lambda: (tensor_parallel(megatron(M)), M),
    "tensor parallel, norms that are all one": lambda: (tensor_parallel(megatron(ONES)), ONES),
    "another number of ranks": lambda: (tensor_parallel(megatron(M)), megatron(M)),
    "stages with their own numbers": lambda: (stages(renamed(M, *META)), M),
    "a padded vocabulary": lambda: (padded(megatron(M), "embedding.word_embeddings.weight", "output_layer.weight"), M),
    "a padded vocabulary in ranks": lambda: (
        tensor_parallel(padded(megatron(M), "embedding.word_embeddings.weight", "output_layer.weight")),
        M,
    ),
    "int8 with scales": lambda: (quantized(M), M),
    "layers numbered from 1": lambda: (
        {re.sub(r"(?<=layers\.)\d", lambda m: str(int(m[0]) + 1), k): v for k, v in M.items()},
        M,
    ),
    "numbers in place of names": lambda: (
        {f"net.{2 * index}.weight": tensor for index, tensor in enumerate(MATRICES)},
        {f"fc{index}.weight": tensor for index, tensor in enumerate(MATRICES)},
    ),
    "an optimizer with another order": lambda: (training([3, 0, 1, 2, 5, 4]), training(ORDER)),
    "an optimizer, other names": lambda: (moved(training(ORDER, names=False), ORDER), training(ORDER, names=False)),
    "an optimizer of tied parameters": lambda: (tied(), by_names(tied())),
    "without the optimizer": lambda: (training(ORDER)["model"], training(ORDER)),
    "an optimizer of many parameters, by names": lambda: (
        by_names(training(list(range(12)), names=False)),
        training(list(range(12)), names=False),
    ),
    "kernels with channels last": lambda: (permuted(kernels(), 0, 2, 3, 1), kernels()),
    "kernels of Flax": lambda: (renamed(permuted(kernels(), 2, 3, 1, 0), ("weight", "kernel")), kernels()),
    "gates of ONNX": lambda: (onnx(lstm()), lstm()),
    "a virtual pipeline": lambda: (in_turn(M), M),
    "ranks without rows": lambda: (by_rows(kernels()), kernels()),
    "a bias of zeros": lambda: (M, M | {"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}),
}
MATRICES = [M[f"model.layers.{index}.self_attn.q_proj.weight"] for index in range(4)]

#: The sides, and a part of what is said, or the number of tensors that differ.
WRONG: dict[str, tuple[Callable[[], Sides], str]] = {
    "layers exchanged": (lambda: (megatron(exchanged(M, LAYERS)), M), "layers 2 and 3 exchanged"),
    "layers exchanged, same names": (lambda: (exchanged(M, LAYERS), M), "layers 2 and 3 exchanged"),
    "both layers exchanged": (
        lambda: (renamed(exchanged(model(2), (r"layers\.0\.", r"layers\.1\.")), *META), model(2)),
        "layers 0 and 1 exchanged",
    ),
    "keys of two layers exchanged": (
        lambda: (exchanged(M, (r"2\.self_attn\.k", r"3\.self_attn\.k")), M),
        "layers 2 and 3 exchanged: k_proj",
    ),
    "fused k and v": (
        lambda: (megatron(M | {K1: M[V1], V1: M[K1]}), M),
        "layer 1: k and v exchanged: linear_qkv is joined q, v, k, not q, k, v",
    ),
    "fused k and v of all layers": (lambda: (megatron(M, order="qvk"), M), "layer 3: k and v exchanged"),
    "k and v, same names": (lambda: (M | {K1: M[V1], V1: M[K1]}, M), "layer 1: k_proj and v_proj exchanged"),
    "k and v of one layer alone": (
        lambda: (exchanged(renamed(ONE, *META), ("wk", "wv")), ONE),
        "layers.0.attention.wv.weight holds what model.layers.0.self_attn.k_proj.weight holds in B",
    ),
    "gate and up": (lambda: (megatron(M, gated=("up", "gate")), M), "layer 0: gate and up exchanged"),
    "one square matrix": (lambda: (changed(M, O1, torch.t), M), "layer 1: o_proj is transposed, the others are not"),
    "one square matrix, other names": (
        lambda: (renamed(changed(M, O1, torch.t), *META), M),
        "layer 1: o_proj is transposed, the others are not",
    ),
    "a square matrix of one layer": (
        lambda: (changed(ONE, O1.replace("1", "0"), torch.t), ONE),
        "layer 0: o_proj is transposed, the others are not",
    ),
    "Conv1D with a square matrix as it was": (
        lambda: (linear(conv1d(1), "h.0.attn.c_proj"), conv1d(1)),
        "h 0: c_proj is not transposed, the others are transposed",
    ),
    "experts exchanged": (lambda: (megatron(exchanged(MOE, EXPERTS)), MOE), "layer 1: experts 0 and 1 exchanged"),
    "experts exchanged, stacked": (
        lambda: (stacked(exchanged(MOE, EXPERTS)), MOE),
        "layer 1: experts 0 and 1 exchanged",
    ),
    "row-parallel parts": (
        lambda: (through(PROJ, exchange(PROJ), M), M),
        "layer 1: parts of o_proj is joined 01, 00, not 00, 01",
    ),
    "ranks exchanged": (lambda: (tensor_parallel(megatron(M))[::-1], M), "is joined 01, 00, not 00, 01"),
    "a copy of a rank": (lambda: (through(NORM, lambda ranks: ranks[1][NORM].add_(0.01), M), M), "1"),
    "copies of a rank exchanged": (
        lambda: (through(NORM, lambda ranks: ranks[1].update({NORM: ranks[1][OTHER], OTHER: ranks[1][NORM]}), M), M),
        "2",
    ),
    "a layer more": (lambda: (M | renamed(M, (r"layers\.3\.", "layers.4.")), M), ""),
    "gate and up cut as one": (
        lambda: (
            [
                mapped(part(megatron(M), "fc1.weight"), lambda held: held[:48].clone()),
                mapped(part(megatron(M), "fc1.weight"), lambda held: held[48:].clone()),
            ],
            part(M, "gate|up"),
        ),
        "ranks hold parts of other tensors than each other",
    ),
    "stages exchanged": (lambda: (stages(renamed(M, *META))[::-1], M), "layers 0 and 2 exchanged"),
    "groups of one layer": (
        lambda: (megatron(M) | part(megatron(M, groups=1), "layers.1"), M),
        "layer 1: q_proj is 3 parts along dimension 0, the others are 3 parts along dimension 0, in 2 groups",
    ),
    "groups of biases": (
        lambda: (megatron(BIAS) | part(megatron(BIAS, groups=1), "bias$"), BIAS),
        "layer 0: bias is 3 parts along dimension 0",
    ),
    "norms": (
        lambda: (renamed(exchanged(M, ("input_layernorm", "post_attention_layernorm")), *META), M),
        "layers.0.ffn_norm.weight holds what model.layers.0.input_layernorm.weight holds in B",
    ),
    "embedding and head": (
        lambda: (renamed(exchanged(M, (r"model\.embed_tokens", "lm_head")), *META), M),
        "tok_embeddings.weight holds what lm_head.weight holds in B",
    ),
    "rotary embedding of queries alone": (
        lambda: (rotary(renamed(M, *META), r"\.wq\."), M),
        "q_proj is rows of 4 heads",
    ),
    "a vocabulary without its last row": (lambda: (changed(M, "lm_head.weight", lambda tensor: tensor[:-1]), M), "1"),
    "rows of a vocabulary": (lambda: (changed(M, "lm_head.weight", lambda tensor: tensor.flip(0)), M), "1"),
    "heads of a layer": (lambda: (changed(M, K1, lambda tensor: tensor.roll(8, 0)), M), "1"),
    "a scale of another matrix": (
        lambda: (quantized(M) | {f"{O1}_scale": quantized(M)[f"{O1}_scale"].flip(0)}, M),
        "1",
    ),
    "an infinite element": (lambda: (mapped(LARGE, torch.Tensor.half), LARGE), "1"),
    "a kernel as it was": (
        lambda: (permuted(kernels(), 0, 2, 3, 1) | dict(list(kernels().items())[:1]), kernels()),
        "layer 0: conv is not transposed, the others are transposed to dimensions 0, 3, 1, 2",
    ),
    "height and width": (lambda: (permuted(kernels(), 0, 1, 3, 2), kernels()), "3"),
    "gates of biases": (
        lambda: (onnx(lstm(), but="bias"), lstm()),
        "is gates in the order 0, 3, 1, 2, the others are not",
    ),
    "gates under PyTorch's names": (
        lambda: (
            renamed(onnx(lstm()), ("lstm.W", "rnn.weight_ih"), ("lstm.R", "rnn.weight_hh"), ("lstm.B", "rnn.bias")),
            lstm(),
        ),
        "8",
    ),
    "layers of an LSTM": (
        lambda: (onnx(exchanged(lstm(), ("_l0", "_l1"))), lstm()),
        "layers 0 and 1 exchanged: weight_",
    ),
    "ranks of a virtual pipeline": (lambda: (in_turn(M)[::-1], M), "exchanged: q_proj"),
    "rows of a rank": (
        lambda: (
            [held | ({K: held[K][:0]} if rank == 1 else {}) for rank, held in enumerate(by_rows(kernels()))],
            kernels(),
        ),
        "",
    ),
    "moments of two parameters": (
        lambda: (moved(training(ORDER, names=False), [2, 1, 0, 3, 4, 5]), training(ORDER, names=False)),
        "optimizer.state.0.exp_avg holds what optimizer.state.2.exp_avg holds in B",
    ),
    "states of other parameters": (
        lambda: (moved(training(ORDER, names=False), [2, 1, 0, 3, 4, 5]), training(ORDER, names=False)),
        "4",
    ),
}


def result_of(folder: Path, sides: Sides) -> ComparedTensor:
    contents = []
    for name, side in zip("ab", sides):
        if isinstance(side, list):
            (folder / name).mkdir()
            for rank, held in enumerate(side):
                torch.save(held, folder / name / f"mp_rank_{rank:02}.pt")
        else:
            torch.save(side, folder / name)
        contents.append(read_checkpoint(folder / name))
    return compare(*contents, lambda done, total: None)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("is_target", [True, False])
def test_right_conversions_are_equal(tmp_path: Path, name: str, is_target: bool) -> None:
    result = result_of(tmp_path, RIGHT[name]()[:: 1 if is_target else -1])
    assert (sentences(result.findings), result.differing, result.only, result.shapes) == ([], [], ([], []), [])
    assert result.exit_code == 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_conversions_are_named(tmp_path: Path, name: str) -> None:
    make, said = WRONG[name]
    result = result_of(tmp_path, make())
    assert result.exit_code == 1
    if said.isdecimal():
        assert len(result.differing) + len(result.shapes) == int(said)
    else:
        assert said in "\n".join(sentences(result.findings))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_conversions_are_wrong_from_either_side(tmp_path: Path, name: str) -> None:
    assert result_of(tmp_path, WRONG[name][0]()[::-1]).exit_code == 1
