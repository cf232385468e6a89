"""API calls that cannot be judged at all, each with its reason."""

from __future__ import annotations

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.uncomputable import reason_uncomputable
from pytest_msprobe.precheck.random_table import random_api

#: Random APIs under any type that random_apis.txt does not list, such as Aten and NPU ones.
_RANDOM = frozenset(
    """
    alpha_dropout bernoulli bernoulli_ cauchy_ dropout dropout1d dropout2d dropout3d dropout_ext exponential
    exponential_ feature_alpha_dropout feature_dropout gamma geometric_ gumbel_softmax laplace log_normal
    log_normal_ log_uniform_candidate_sampler multinomial multinomial_with_replacement native_dropout normal normal_
    npu_dropout poisson rand rand_like randint randint_like randn randn_like random_ random_categorical random_gamma
    random_poisson randperm rrelu rrelu_ shuffle standard_gamma standard_laplace standard_normal truncated_normal
    uniform uniform_ uniform_candidate_sampler
    """.split()
)
_UNINITIALISED = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided resize_ empty_with_format".split()
)
_COMMUNICATION = frozenset({"Distributed", "MintDistributed"})


def reason_not_judged(api: ApiName, framework: str = "mindspore") -> str | None:
    """Why neither a benchmark nor a law can judge the outputs of `api`, or None when one may."""
    if api.type in _COMMUNICATION:
        return "communication: the other ranks' data is not in this dump"
    if api.type == "Jit":
        return "a jit function: its code is not in the dump"
    if framework == "mindspore" and (reason := reason_uncomputable(api)) is not None:
        return reason
    entry = random_api(api, framework)
    if entry is not None:
        return f"random by nature: {entry.reason}" if entry.reason else None
    if api.short in _RANDOM:
        return f"random by nature: the table of laws has no {api.type}.{api.table_name}"
    if api.short in _UNINITIALISED:
        return "uninitialised memory: its values mean nothing"
    return None
