"""Decoding and training that slow each other down while both go on, as on cores they share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Contended(NamedTuple):
    """What participations take with one reader ahead of training, seconds, float64 [n] each.

    Attributes:
        finished_s: from the start of the first read to the end of the last step.
        decode_s: that the reader decodes.
        compute_s: that training goes on.
    """

    finished_s: np.ndarray
    decode_s: np.ndarray
    compute_s: np.ndarray


def contended(
    storage_s: np.ndarray,
    decode_s: np.ndarray,
    compute_s: np.ndarray,
    depth: np.ndarray,
    slowdown: np.ndarray,
) -> Contended:
    """Walk through the queue of `fedio.overlap` for one reader, from event to event.

    While a batch is decoded and another is trained, both take `slowdown` times as long.

    Args:
        storage_s: seconds of storage for each batch, finite, [n, steps].
        decode_s: seconds of decoding it alone, finite, [n, steps].
        compute_s: seconds of training it alone, finite, [n, steps].
        depth: batches at a time, the one in training included, whole, at least 1, [n].
        slowdown: at least 1, finite, [n].
    """
    n, steps = storage_s.shape
    rows, nothing = np.arange(n), np.zeros((n, 1))
    storage_s, decode_s, compute_s = (
        np.concatenate([seconds, nothing], axis=1) for seconds in (storage_s, decode_s, compute_s)
    )
    now_s, decoding_s, training_s = np.zeros((3, n))
    read, trained = np.zeros((2, n), np.int64)  # batches that are, and so the next ones to be
    is_reading = np.full(n, steps > 0)
    is_decoding, is_training = np.zeros((2, n), dtype=bool)
    reader_left_s, trainer_left_s = storage_s[:, 0].copy(), np.zeros(n)
    for _ in range(3 * steps):  # each ends a storage read, a decoding or a training of everybody
        pace = np.where(is_decoding & is_training, slowdown, 1.0)
        reader_s = np.where(is_reading, reader_left_s * np.where(is_decoding, pace, 1.0), np.inf)
        trainer_s = np.where(is_training, trainer_left_s * pace, np.inf)
        passed_s = np.minimum(reader_s, trainer_s)
        reader_is_done, trainer_is_done = reader_s == passed_s, trainer_s == passed_s
        passed_s = np.where(np.isfinite(passed_s), passed_s, 0.0)  # of those that are through
        reader_is_done, trainer_is_done = reader_is_done & is_reading, trainer_is_done & is_training
        now_s += passed_s
        decoding_s += passed_s * is_decoding
        training_s += passed_s * is_training
        reader_left_s -= passed_s / np.where(is_decoding, pace, 1.0)
        trainer_left_s -= passed_s / pace
        # What is read is decoded, and what is decoded can be trained.
        is_read, is_decoded = reader_is_done & ~is_decoding, reader_is_done & is_decoding
        reader_left_s = np.where(is_read, decode_s[rows, read], reader_left_s)
        is_decoding = (is_decoding & ~is_decoded) | is_read
        read += is_decoded
        trained += trainer_is_done
        # Whoever has come to an end takes the next batch, if there is one and a place for it.
        is_reading &= ~is_decoded
        begins = ~is_reading & (read < steps) & (read - trained < depth)
        reader_left_s = np.where(begins, storage_s[rows, read], reader_left_s)
        is_reading |= begins
        is_training &= ~trainer_is_done
        begins = ~is_training & (trained < read)
        trainer_left_s = np.where(begins, compute_s[rows, trained], trainer_left_s)
        is_training |= begins
    return Contended(now_s, decoding_s, training_s)
