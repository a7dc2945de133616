"""Batch growth: a larger batch in the memory that compression freed."""

from __future__ import annotations


def grown(batch: int, base: int, most: int, kept_bytes: int, budget: int) -> int:
    """The batch size to go on with, after an epoch at one: twice it, if that fits.

    Args:
        batch: images or sequences a step, now.
        base: the batch size that was set.
        most: times the base that it may become.
        kept_bytes: what a step keeps for backward, now; and what comes on top while the largest part is run again.
        budget: what a step may keep: of the plain training at the base, so that memory never exceeds what that needs.

    Example:
        >>> grown(64, base=64, most=4, kept_bytes=10, budget=100)
        128
        >>> grown(128, base=64, most=4, kept_bytes=60, budget=100)
        128
    """
    larger = 2 * batch
    return larger if larger <= most * base and 2 * kept_bytes <= budget else batch


def scaled(lr: float, batch: int, base: int) -> float:
    """The learning rate for a grown batch: in proportion to it (Goyal et al., 2017).

    A batch doubles after an epoch at the earliest, so that the rate rises by steps, as a warm-up does.

    Example:
        >>> scaled(0.1, 128, base=64)
        0.2
    """
    return lr * batch / base
