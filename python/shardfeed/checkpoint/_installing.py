"""Making torch use our reader where it would use its own."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed.checkpoint._storage_utils as _storage_utils
import torch.distributed.checkpoint.format_utils as _format_utils

from shardfeed.checkpoint._reader import Reader


def install() -> Callable[[], None]:
    """From now on `dcp.load(state, checkpoint_id=path)` and `dcp_to_torch_save` read with `Reader` in this process.

    Torch has a fixed list of readers and no way to add to it, so its modules are changed. Returns a function that undoes it.

    >>> import torch.distributed.checkpoint as dcp
    >>> state = {"model": model.state_dict()}
    >>> uninstall = install()
    >>> dcp.load(state, checkpoint_id="checkpoints/step-1000")
    >>> uninstall()
    """
    before = [(module, module.FileSystemReader) for module in (_storage_utils, _format_utils)]  # type: ignore[attr-defined, unused-ignore]
    for module, _ in before:
        module.FileSystemReader = Reader  # type: ignore[attr-defined, unused-ignore]

    def uninstall() -> None:
        for module, reader in before:
            module.FileSystemReader = reader  # type: ignore[attr-defined, unused-ignore]

    return uninstall
