"""Environment variables that change what a training computes. Only these are read: others may hold secrets."""

from __future__ import annotations

import os

#: Name: what it does to numbers, and where that is documented.
VARIABLES = {
    # Deterministic algorithms
    "CUBLAS_WORKSPACE_CONFIG": "cuBLAS, results reproducibility (docs.nvidia.com/cuda/cublas)",
    "HCCL_DETERMINISTIC": "CANN, environment variables: order of sums in collectives",
    "LCCL_DETERMINISTIC": "CANN, environment variables: order of sums in collectives of few ranks",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "CANN ATB: order of sums in matrix products",
    "FLASH_ATTENTION_DETERMINISTIC": "flash-attention: order of sums in the backward",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "Transformer Engine, environment variables",
    "XLA_FLAGS": "XLA: deterministic operations, excess precision",
    "PYTHONHASHSEED": "Python: order of sets of strings",
    # Precision of products
    "NVIDIA_TF32_OVERRIDE": "cuBLAS and cuDNN: TF32 in products of float32",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "PyTorch, CUDA environment variables: TF32",
    "ONEDNN_DEFAULT_FPMATH_MODE": "oneDNN: bfloat16 or TF32 in products of float32",
    "DNNL_DEFAULT_FPMATH_MODE": "oneDNN: bfloat16 or TF32 in products of float32",
    "MIOPEN_DEBUG_CONVOLUTION_ATTRIB_FP16_ALT_IMPL": "PyTorch, HIP semantics: float16 in convolutions",
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL": "PyTorch, HIP semantics: float16 in products",
    "INF_NAN_MODE_ENABLE": "CANN: overflow gives Inf, or saturates",
    "MS_ASCEND_CHECK_OVERFLOW_MODE": "MindSpore, environment variables: overflow gives Inf, or saturates",
    "INF_NAN_MODE_FORCE_DISABLE": "torch_npu: overflow saturates",
    # Instruction sets and kernels
    "ATEN_CPU_CAPABILITY": "PyTorch: instructions of kernels on the CPU",
    "MKL_CBWR": "oneMKL, conditional numerical reproducibility",
    "MKL_ENABLE_INSTRUCTIONS": "oneMKL: instructions of kernels",
    "ONEDNN_MAX_CPU_ISA": "oneDNN: instructions of kernels",
    "DNNL_MAX_CPU_ISA": "oneDNN: instructions of kernels",
    "OPENBLAS_CORETYPE": "OpenBLAS: kernels",
    "NPY_DISABLE_CPU_FEATURES": "NumPy: instructions of kernels",
    "TORCH_BLAS_PREFER_CUBLASLT": "PyTorch, CUDA environment variables: library of products",
    "TORCH_BLAS_PREFER_HIPBLASLT": "PyTorch: library of products",
    "PYTORCH_MIOPEN_SUGGEST_NHWC": "PyTorch: layout of convolutions",
    "MIOPEN_FIND_MODE": "MIOpen: choice of kernels",
    "CUDNN_CONV_WSCAP_DBG": "PyTorch, CUDA environment variables: choice of convolutions",
    "CUDA_FORCE_PTX_JIT": "CUDA: kernels are compiled anew",
    "NVTE_FLASH_ATTN": "Transformer Engine: kernels of attention",
    "NVTE_FUSED_ATTN": "Transformer Engine: kernels of attention",
    "NVTE_UNFUSED_ATTN": "Transformer Engine: kernels of attention",
    "TORCH_COMPILE_DISABLE": "PyTorch: compiled regions run eagerly",
    "TORCHDYNAMO_DISABLE": "PyTorch: compiled regions run eagerly",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "PyTorch Inductor: choice of kernels",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS": "PyTorch Inductor: roundings between fused operations",
    "PYTORCH_JIT": "PyTorch: scripted functions run as Python",
    "MS_ENABLE_ACLNN": "MindSpore: kernels on Ascend",
    "MS_DEV_JIT_SYNTAX_LEVEL": "MindSpore: what graphs compile",
    "MS_ENABLE_INTERNAL_BOOST": "MindSpore: fused kernels on Ascend",
    "MS_INTERNAL_ENABLE_CUSTOM_KERNEL_LIST": "MindSpore: fused kernels on Ascend",
    "MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST": "MindSpore: fused kernels on Ascend",
    "MS_FORMAT_MODE": "MindSpore: layout of tensors on Ascend",
    "GRAPH_OP_RUN": "MindSpore: graphs run operator by operator",
    "ACLNN_CACHE_LIMIT": "CANN: kernels",
    "TASK_QUEUE_ENABLE": "torch_npu: order of launches",
    # Memory that operations may reuse
    "PYTORCH_CUDA_ALLOC_CONF": "PyTorch: allocator; what uninitialised memory holds",
    "PYTORCH_ALLOC_CONF": "PyTorch: allocator; what uninitialised memory holds",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "PyTorch: allocator",
    "PYTORCH_NPU_ALLOC_CONF": "torch_npu: allocator",
    "MULTI_STREAM_MEMORY_REUSE": "torch_npu: memory between streams",
    "MS_ALLOC_CONF": "MindSpore, environment variables: allocator",
    "MALLOC_PERTURB_": "glibc: what uninitialised memory holds",
    # Threads: the order of sums on a CPU
    "OMP_NUM_THREADS": "OpenMP",
    "MKL_NUM_THREADS": "oneMKL",
    "MKL_DYNAMIC": "oneMKL",
    "OPENBLAS_NUM_THREADS": "OpenBLAS",
    "OMP_DYNAMIC": "OpenMP",
    # Order of launches
    "CUDA_LAUNCH_BLOCKING": "CUDA: kernels one after another",
    "ASCEND_LAUNCH_BLOCKING": "torch_npu: kernels one after another",
    "CUDA_DEVICE_MAX_CONNECTIONS": "CUDA: order of kernels; Megatron's sequence parallelism needs 1",
    # Communication
    "NCCL_ALGO": "NCCL, environment variables: order of sums",
    "NCCL_PROTO": "NCCL, environment variables: order of sums",
    "NCCL_MIN_NCHANNELS": "NCCL: parts of a sum",
    "NCCL_MAX_NCHANNELS": "NCCL: parts of a sum",
    "NCCL_NTHREADS": "NCCL: parts of a sum",
    "NCCL_NVLS_ENABLE": "NCCL: sums in the switch",
    "NCCL_COLLNET_ENABLE": "NCCL: sums in the network",
    "NCCL_BUFFSIZE": "NCCL: parts of a sum",
    "HCCL_ALGO": "CANN, environment variables: order of sums",
    "HCCL_OP_EXPANSION_MODE": "CANN, environment variables: where collectives are computed",
    "HCCL_BUFFSIZE": "CANN, environment variables: parts of a sum",
    "HCCL_INTRA_PCIE_ENABLE": "CANN, environment variables: ways of a sum",
    "HCCL_INTRA_ROCE_ENABLE": "CANN, environment variables: ways of a sum",
    # Ranks and devices, as launchers give them
    "WORLD_SIZE": "torchrun",
    "RANK_SIZE": "Ascend launchers",
    "MS_WORKER_NUM": "msrun",
    "CUDA_VISIBLE_DEVICES": "CUDA",
    "ASCEND_RT_VISIBLE_DEVICES": "CANN",
}

#: Characters of a value that are kept.
_MOST = 256


def environment() -> dict[str, str]:
    """The variables of the table that are set, with at most 256 characters of each value."""
    return {name: os.environ[name][:_MOST] for name in VARIABLES if name in os.environ}
