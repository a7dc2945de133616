"""Scaled-dot-product attention in its fused forms: backward rebuilds the softmax from queries, keys and log-sum-exp.

The log-sum-exp, masks, biases and the state of the random numbers have no rule: they are read exactly.
"""

from division.rules.use import Reading, Table, Use, always

_EXPONENT = always(Reading(Use.SMOOTH, axes="rows", exponent=True))
_LINEAR = always(Reading(Use.LINEAR, axes="rows", cancels=True))

RULES: Table = {
    f"ScaledDotProduct{form}Backward0": {"query": _EXPONENT, "key": _EXPONENT, "value": _LINEAR, "output": _LINEAR}
    for form in (
        "FlashAttentionForCpu",
        "FlashAttention",
        "EfficientAttention",
        "CudnnAttention",
        "FusedAttentionOverrideable",
    )
}
