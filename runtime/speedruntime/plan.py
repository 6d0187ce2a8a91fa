"""Group samples of like length: pure functions of lengths, sizes and a random generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def length_order(lengths: NDArray[np.integer], rng: np.random.Generator, *, jitter: int = 0) -> IntArray:
    """Return sample numbers from short to long, ties in random order, ranks blurred.

    Args:
        lengths: ``[N]`` integers, in tokens.
        rng: source of all randomness.
        jitter: how far a sample may move, in ranks (less and less in the longest quarter). Without it a set without
            ties gives the same batches in each epoch.

    Returns:
        ``[N]`` permutation of ``range(N)``.

    Example:
        >>> length_order(np.array([30, 10, 20]), np.random.default_rng(0)).tolist()
        [1, 2, 0]
    """
    shuffled = rng.permutation(len(lengths))
    # numpy sorts 16-bit integers by radix: 10x faster than 64-bit ones.
    keys = lengths if len(lengths) == 0 or lengths.max() > 65_535 else lengths.astype(np.uint16)
    order = shuffled[np.argsort(keys[shuffled], kind="stable")]
    if not jitter or len(order) < 2:
        return order
    blurred = rng.random(len(order))
    blurred *= jitter
    # Among the longest samples neighbours differ most: moving them costs most.
    quarter = -(-len(order) // 4)
    blurred[-quarter:] *= np.arange(quarter, 0, -1) / quarter
    blurred += np.arange(len(order))
    return order[np.argsort(blurred)]


def bucket(
    lengths: NDArray[np.integer], sizes: Sequence[int], rng: np.random.Generator, *, jitter: int = 0
) -> list[IntArray]:
    """Cut samples into batches of like length, in random order of batches.

    Args:
        lengths: ``[N]`` integers, in tokens.
        sizes: size of each batch, N in total. Smaller ones come last, from a random place among the lengths.
        rng: source of all randomness.
        jitter: as in `length_order`.

    Returns:
        One array of sample numbers per batch; each sample once.

    Example:
        >>> lengths = np.array([1, 9, 2, 8])
        >>> sorted(sorted(batch.tolist()) for batch in bucket(lengths, [2, 2], np.random.default_rng(0)))
        [[0, 2], [1, 3]]
    """
    order = length_order(lengths, rng, jitter=jitter)
    cuts = np.cumsum(rng.permutation(np.asarray(sizes, dtype=np.int64)))[:-1]
    batches = np.split(order, cuts)
    shuffled = [batches[number] for number in rng.permutation(len(batches))]
    return sorted(shuffled, key=len, reverse=True)


def slot_efficiency(lengths: NDArray[np.integer], batches: Sequence[IntArray]) -> float:
    """Return real tokens per computed slot (0 to 1) when each batch is padded to its own longest sample.

    Args:
        lengths: ``[N]`` integers, in tokens.
        batches: sample numbers of each batch.

    Returns:
        Sum of lengths over sum of (batch size x longest).

    Example:
        >>> slot_efficiency(np.array([1, 3]), [np.array([0, 1])])
        0.6666666666666666
    """
    real = sum(int(lengths[batch].sum()) for batch in batches)
    return real / sum(len(batch) * int(lengths[batch].max()) for batch in batches)
