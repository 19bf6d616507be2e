"""Where bytes go: straight into a tensor's memory, or through memory in between."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import torch

from shardfeed.checkpoint._items import StoredPart


class Route(enum.Enum):
    """How the bytes of an item come into a tensor."""

    DIRECT = "native threads write them to where they belong"
    PINNED = "native threads write them to pinned memory, and a stream copies them to the device"
    STAGED = "native threads write them to memory in between, and `copy_` does the rest"
    TORCH = "torch makes a tensor of the item's bytes, and `copy_` does the rest"


def route_of(target: torch.Tensor, part: StoredPart | None) -> Route:
    """How a part of what is stored comes into a target."""
    if part is None or type(target) is not torch.Tensor or target.layout is not torch.strided:
        return Route.TORCH
    if target.is_quantized or target.device.type == "meta":
        return Route.TORCH
    if target.device.type == "cuda" and target.dtype is part.dtype and not target.is_neg() and not target.is_conj():
        return Route.STAGED if target.is_inference() else Route.PINNED
    if target.device.type != "cpu" or target.dtype is not part.dtype or target.is_neg() or target.is_conj():
        return Route.STAGED
    # Whether those may be changed, and what counts their changes, is torch's business.
    if target.is_inference():
        return Route.STAGED
    if not target.is_contiguous() and not _is_single(target):
        return Route.STAGED
    return Route.DIRECT


def staging_for(part: StoredPart) -> torch.Tensor:
    """Memory in between for a part, as a tensor of what was saved."""
    return torch.empty(part.sizes, dtype=part.dtype, device="cpu")


def byte_strides(tensor: torch.Tensor) -> list[int]:
    """Bytes from one index of each dimension to the next."""
    size = tensor.element_size()
    return [stride * size for stride in tensor.stride()]


def bump_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Lets autograd know that tensors have changed, as an operation in place would have done."""
    # One at a time: torch 2.4 takes no list.
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


def meets_any(targets: Sequence[torch.Tensor], others: Iterable[torch.Tensor]) -> list[bool]:
    """Which of these tensors may share memory with any of the others, or with another that does."""
    spans = [(*_span(target), index) for index, target in enumerate(targets)]
    spans += [(*_span(other), -1) for other in others if _has_memory(other)]
    spans.sort()
    meets = [False] * len(targets)
    group: list[int] = []
    group_end, is_met = 0, False
    for start, end, index in [*spans, (2**64, 2**64, -2)]:
        if start >= group_end:
            for member in group:
                meets[member] = is_met
            group, group_end, is_met = [], 0, False
        group_end = max(group_end, end)
        if index >= 0:
            group.append(index)
        else:
            is_met = True
    return meets


def _is_single(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory, as far as that can be told by looking at one dimension after another."""
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size()) if size > 1):
        if stride < reach:
            return False
        reach += (size - 1) * stride
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return start, start + reach * tensor.element_size()


def _has_memory(tensor: torch.Tensor) -> bool:
    # Addresses of devices are no addresses of this machine's memory, nor of another device's.
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout is not torch.strided or tensor.numel() == 0:
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        # Some subclasses have no memory of their own.
        return False
