"""What a loader hands out."""

from typing import Any


class Batch(dict[str, Any]):
    """One rank's part of a step: a dictionary of tensors, `input_ids` and what goes with them, that knows where it is from.

    It goes into a model as it is (`model(**batch)`): what is not a tensor is an attribute.
    """

    #: The step's number in its epoch.
    step: int
    #: The epoch.
    epoch: int
    #: Tokens that are not padding.
    tokens: int
    #: Labels that are not -100. Divide a summed loss by the sum of this over the ranks.
    valid_labels: int

    __slots__ = ("step", "epoch", "tokens", "valid_labels")

    def __repr__(self) -> str:
        told = {name: f"{value.dtype} {tuple(value.shape)}" for name, value in self.items()}
        return f"Batch(step={self.step}, epoch={self.epoch}, {told})"
