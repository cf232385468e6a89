"""API calls that comparing numbers cannot judge, each with its reason."""

from __future__ import annotations

from msprobe_collector.dump_format import ApiName

_RANDOM = frozenset(
    """
    alpha_dropout bernoulli bernoulli_ cauchy_ dropout dropout1d dropout2d dropout3d dropout_ext exponential
    exponential_ feature_alpha_dropout feature_dropout gamma geometric_ gumbel_softmax laplace log_normal
    log_normal_ log_uniform_candidate_sampler multinomial multinomial_with_replacement normal normal_ poisson
    rand rand_like randint randint_like randn randn_like random_ random_categorical random_gamma
    random_poisson randperm rrelu rrelu_ shuffle standard_laplace standard_normal truncated_normal uniform
    uniform_ uniform_candidate_sampler StandardNormal UniformReal UniformInt Dropout DropoutExt Dropout2D
    Dropout3D Multinomial RandomChoiceWithMask Randperm TruncatedNormal native_dropout
    """.split()
)
_UNINITIALISED = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided resize_ Empty EmptyLike empty_with_format".split()
)
_COMMUNICATION = frozenset({"Distributed", "MintDistributed"})


def reason_not_judged(api: ApiName) -> str | None:
    """Why the outputs of `api` cannot be judged by comparing them with a benchmark's, or None when they can."""
    if api.type in _COMMUNICATION:
        return "communication: the other ranks' data is not in this dump"
    if api.type == "Jit":
        return "a jit function: its code is not in the dump"
    if api.short in _RANDOM:
        return "random by nature: two correct runs differ"
    if api.short in _UNINITIALISED:
        return "uninitialised memory: its values mean nothing"
    return None
