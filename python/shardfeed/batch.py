"""What a loader hands out."""

from collections.abc import Iterable
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

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        """A batch whose tensors are on a device. Accelerate and Lightning call it."""
        return self._with((name, tensor.to(device, non_blocking=non_blocking)) for name, tensor in self.items())

    def copy(self) -> "Batch":
        """A batch of the same tensors."""
        return self._with(self.items())

    def _with(self, items: Iterable[tuple[str, Any]]) -> "Batch":
        batch = Batch(items)
        for name in self.__slots__:
            if hasattr(self, name):
                setattr(batch, name, getattr(self, name))
        return batch

    def __getattr__(self, name: str) -> Any:
        if name in Batch.__slots__:
            raise AttributeError(
                f"this batch was made of another's tensors, by a wrapper that does not know of its {name}; take {name} from the batch "
                "that the loader handed out, or use Batch.to(device) and Batch.copy(). With Accelerate, "
                "DataLoaderConfiguration(dispatch_batches=False) keeps it"
            )
        raise AttributeError(f"'Batch' object has no attribute {name!r}")

    def __repr__(self) -> str:
        told = [f"{name}={getattr(self, name)}" for name in ("step", "epoch") if hasattr(self, name)]
        tensors = {name: f"{value.dtype} {tuple(value.shape)}" for name, value in self.items()}
        return f"Batch({', '.join([*told, str(tensors)])})"
