"""The fingerprint of a tensor: a hash of dtype, shape and content that tells two tensors apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

from msprobe_collector.dump_format.dtypes import dtype_of_array


def fingerprint_of(array: np.ndarray[Any, Any]) -> str:
    """XXH3 (64 bits) of dtype, shape and the elements of `array` in C order, as 16 hexadecimal digits.

    Equal fingerprints mean equal bits, but for a chance of 2**-64: elements that are swapped, permuted, transposed or
    reshaped change it, and so do the sign of a zero, the payload of a NaN and another dtype. The dtype counts by its
    name in dumps, so that tensors of different frameworks can be equal.

    XXH3 because it costs next to nothing beside the statistics: 4 MiB in 0.05 ms, where zlib.crc32 takes 1.7 ms,
    zlib.adler32 3.4 ms, hashlib.md5 16 ms and the statistics 3.3 ms. It is no protection against forgery.
    """
    dtype = dtype_of_array(array.dtype)
    digest = xxhash.xxh3_64(f"{array.dtype.name if dtype is None else dtype.name}{array.shape}\n".encode())
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # As bytes, since bfloat16 and its like have no buffer format of their own.
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
