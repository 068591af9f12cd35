"""Reading ahead of training, as a deterministic queue: when the last step ends.

A batch is read, then decoded, by a reader, and trained when the batch before it is. Storage is one
queue, in the order of the batches, however many readers there are; each decodes on its own. Batch j
is begun when the first reader is free and, since only `depth` batches have a place, when batch
j - depth has been trained. So with a depth of 1 nothing overlaps.
"""

from __future__ import annotations

import numpy as np


def finish_s(
    storage_s: np.ndarray,
    decode_s: np.ndarray,
    compute_s: np.ndarray,
    depth: np.ndarray,
    readers: np.ndarray,
) -> np.ndarray:
    """Return seconds from the start of the first read to the end of the last step.

    Args:
        storage_s: seconds of storage for each batch, [n, steps].
        decode_s: seconds of decoding it, [n, steps].
        compute_s: seconds of training it, [n, steps].
        depth: batches at a time, the one in training included, [n]; no number counts as 1.
        readers: how many readers there are, [n]; as depth.

    Returns:
        float64 [n].
    """
    count, steps = storage_s.shape
    depth, readers = _whole(depth, steps).astype(np.int64), _whole(readers, steps)
    most = int(readers.max(initial=1))
    # A reader that is not there is never free.
    free_s = np.where(np.arange(most) < readers[:, None], 0.0, np.inf)
    rows = np.arange(count)
    trained_s = np.zeros((steps + 1, count))  # of batch j in row j + 1
    stored_s = np.zeros(count)
    for j in range(steps):
        reader = free_s.argmin(axis=1)
        place_s = trained_s[np.maximum(j + 1 - depth, 0), rows]
        begun_s = np.maximum(np.maximum(stored_s, free_s[rows, reader]), place_s)
        stored_s = begun_s + storage_s[:, j]
        free_s[rows, reader] = ready_s = stored_s + decode_s[:, j]
        trained_s[j + 1] = np.maximum(trained_s[j], ready_s) + compute_s[:, j]
    finished: np.ndarray = trained_s[steps]
    return finished


def finish_alike_s(
    steps: int,
    storage_s: np.ndarray,
    decode_s: np.ndarray,
    compute_s: np.ndarray,
    depth: np.ndarray,
    readers: np.ndarray,
) -> np.ndarray:
    """Return what `finish_s` does where all batches are alike, without walking through them.

    The last step ends when the longest chain of waits does. The chain begins with a whole turn:
    read, decode, train. It gets 1 batch on by waiting for the slower of storage and training,
    `readers` batches on by waiting for a reader (read, decode), and `depth` batches on by waiting
    for a place (a whole turn). Where readers are fewer than places, a chain that waits for a place
    may as well wait for a reader and then for training, which takes as long or longer; where they
    are not, one that waits for a reader may as well wait for a place. So one of the two is left,
    and the longest chain waits for it as often as goes, or never.

    Args:
        steps: how many batches there are.
        storage_s: seconds of storage for each batch, not negative, [n].
        decode_s: seconds of decoding it, [n].
        compute_s: seconds of training it, [n].
        depth: as for `finish_s`, [n].
        readers: as for `finish_s`, [n].

    Returns:
        float64 [n].
    """
    if not steps:
        return np.zeros(len(storage_s))
    later, depth, readers = steps - 1, *(_whole(_once(n), steps) for n in (depth, readers))
    read_s, pace_s = storage_s + decode_s, np.maximum(storage_s, compute_s)
    turn_s = read_s + compute_s
    # Products in place of choices, which take a processor many times longer where they vary.
    stride, wait_s = np.minimum(readers, depth), read_s + (readers >= depth) * compute_s
    most = np.floor(later / stride)
    most_s = most * wait_s + (later - most * stride) * pace_s
    finished_s: np.ndarray = turn_s + np.maximum(later * pace_s, most_s)
    # Whatever waits for an endless turn is endless too; but no times endless is no number.
    np.copyto(finished_s, turn_s, where=~np.isfinite(turn_s))
    return finished_s


def _once(numbers: np.ndarray) -> np.ndarray:
    """Return the one number that all of [n] are, [1], or all of them where they differ."""
    return numbers[:1] if (numbers == numbers[:1]).all() else numbers


def _whole(numbers: np.ndarray, most: int) -> np.ndarray:
    """Return whole numbers from 1 to `most`, whatever they were; what is no number is 1."""
    whole: np.ndarray = np.floor(np.fmin(np.fmax(numbers, 1), max(most, 1)))
    return whole
