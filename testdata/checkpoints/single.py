"""Checkpoints that one process makes: what can be in an item, and in which
kinds of files items can be."""

import contextlib
import shutil

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import _extension as extension
from torch.utils.serialization import config

from record import all_boxes, recorded
from values import checkpointable, finite, grid, made, sample

KIB, MIB = 1 << 10, 1 << 20

QUANTIZED = {torch.qint8, torch.quint8, torch.qint32}

# dcp.save fails on these.  The sub-byte integers and bits have no element size
# (_element_size asks torch.iinfo, which refuses them); the packed quantized
# ones cannot be cloned ("copy_kernel" not implemented).
UNSAVABLE = {torch.quint4x2, torch.quint2x4}
UNSAVABLE |= {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8)}
UNSAVABLE |= {torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2}


def save(directory, state, planner=None, **options):
    # No fsync: a lost checkpoint is made again.
    writer = FileSystemWriter(directory, sync_files=False, **options)
    dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)


def flat(state, prefix=""):
    """The tensors of a nested state dict under the names torch gives them."""
    items = enumerate(state) if isinstance(state, list) else state.items()
    found = {}
    for key, value in items:
        if isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
        elif isinstance(value, (dict, list)):
            found |= flat(value, f"{prefix}{key}.")
    return found


def simple(out, name, state, slices=(), **options):
    save(out / name, state, **options)
    return recorded(name, FileSystemReader(out / name), flat(state), slices=slices)


# ---------------------------------------------------------------- tensors


def dtypes(out):
    known = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    savable = sorted(known - QUANTIZED - UNSAVABLE, key=str)
    state = {str(d).removeprefix("torch."): made(f"dtypes.{d}", (5, 7), d) for d in savable}
    state |= {f"scalar.{k}": made(f"scalar.{k}", (), t.dtype) for k, t in state.items()}
    return simple(out, "dtypes", state)


def quantized(out):
    numbers, scales = finite("quantized", (4, 3)), torch.tensor([0.5, 0.25, 1.0, 2.0])
    state = {
        f"per_tensor.{str(d).removeprefix('torch.')}": torch.quantize_per_tensor(numbers, 0.5, 3, d)
        for d in sorted(QUANTIZED, key=str)
    }
    zeros = torch.zeros(4, dtype=torch.int64)
    state["per_channel.qint8"] = torch.quantize_per_channel(numbers, scales, zeros, 0, torch.qint8)
    save(out / "quantized", state | {"plain": numbers})
    reason = "quantized: has a scale and a zero point; dcp.load cannot load it either"
    reader = FileSystemReader(out / "quantized")
    return recorded(
        "quantized", reader, {"plain": numbers}, unsupported=dict.fromkeys(state, reason)
    )


def with_grad(name, shape):
    parameter = torch.nn.Parameter(finite(name, shape))
    parameter.grad = torch.ones(shape)
    return parameter


def layouts(out):
    matrix = made("layouts.matrix", (6, 10))
    cube = made("layouts.cube", (4, 5, 6), torch.int16)
    image = made("layouts.image", (2, 3, 5, 7), torch.float16)
    volume = made("layouts.volume", (2, 3, 2, 4, 3), torch.uint8)
    state = {
        "contiguous": matrix,
        "transposed": made("layouts.transposed", (8, 5), torch.bfloat16).t(),
        "permuted_3d": cube.permute(2, 0, 1),
        "permuted_4d": image.permute(3, 1, 0, 2),
        "channels_last": image.contiguous(memory_format=torch.channels_last),
        "channels_last_3d": volume.contiguous(memory_format=torch.channels_last_3d),
        "every_second_column": matrix[:, ::2],
        "every_second_row": matrix[::2],
        "inner_block": matrix[1:5, 2:7],
        "inner_block_transposed": matrix[1:5, 2:7].t(),
        "storage_offset": matrix.flatten()[7:],
        "diagonal": matrix.diagonal(),
        "expanded": matrix[:, :1].expand(6, 4),
        "expanded_scalar": made("layouts.expanded_scalar", (), torch.int32).expand(3, 5),
        "parameter_with_grad": with_grad("layouts.parameter", (3, 4)),
    }
    return simple(out, "layouts", state, all_boxes(state))


def layouts_in_full_storage(out):
    """The writer clones a view unless its storage has as many bytes as the
    view.  A view can have that many by chance; then the item holds strides
    that overlap or leave gaps, and a storage offset."""
    six = made("full_storage.six", (6,))
    twelve = made("full_storage.twelve", (12,), torch.int64)
    state = {
        "expanded": six[:2].unsqueeze(1).expand(2, 3),
        "expanded_last": six[4:].unsqueeze(0).expand(3, 2),
        "overlapping_with_offset": six.as_strided((2, 3), (1, 1), 2),
        "gaps_and_repeats": twelve.as_strided((2, 3, 2), (5, 0, 3), 1),
    }
    for name, view in state.items():
        if view.untyped_storage().size() != view.nbytes:
            raise AssertionError(f"{name}: the writer will clone this view")
    return simple(out, "layouts_in_full_storage", state, all_boxes(state))


def layouts_lazy(out):
    """Conjugate and negative views: a bit in the item, not in its bytes."""
    phases = finite("lazy.phases", (5, 4), torch.complex64)
    state = {
        f"conj.{d}": finite(f"lazy.{d}", (3, 5), getattr(torch, d)).conj()
        for d in ("complex32", "complex64", "complex128")
    }
    state |= {
        f"neg.{d}": torch._neg_view(finite(f"lazy.{d}", (3, 5), getattr(torch, d)))
        for d in ("float16", "bfloat16", "float32", "float64", "int32")
    }
    state |= {
        "conj_transposed": phases.mH,
        "conj_block": phases.conj()[1:3],
        "conj_imaginary": phases.conj().imag,
        "conj_scalar": phases[1, 2].conj(),
        "neg_transposed": torch._neg_view(finite("lazy.neg", (4, 6))).t(),
        # No zeros: which sign torch gives to minus zero depends on the width of the processor's vectors.
        "neg_of_conj": torch._neg_view(phases + (0.5 + 0.5j)).conj(),
    }
    return simple(out, "layouts_lazy", state, all_boxes(state))


def shapes(out):
    empty, one = [(0,), (0, 3), (3, 0, 2)], [(), (1,), (1, 1, 1)]
    sizes = empty + one + [(2, 3, 1, 4, 5), (1, 1, 1, 1, 1, 1, 2), (127,), (31, 37), (7, 11, 13)]
    state = {"x".join(map(str, s)) or "0-dim": made(f"shapes.{s}", s) for s in sizes}
    return simple(out, "shapes", state)


def sizes(out):
    """Items just below, at and above sizes at which readers change their way."""
    state = {}
    for around in (64, 4 * KIB, 64 * KIB, MIB):
        for dtype in (torch.uint8, torch.float32) if around < MIB else (torch.uint8,):
            for more in (-1, 0, 1):
                name = f"{dtype}.{around}{more:+}".removeprefix("torch.")
                state[name] = made(name, (around // dtype.itemsize + more,), dtype)
    return simple(out, "sizes", state)


def slices(out):
    """Parts of tensors of every element size and of every saved layout."""
    image = made("slices.image", (3, 4, 7, 9), torch.float32)
    state = {
        "vector": made("slices.vector", (101,), torch.float16),
        "bytes": made("slices.bytes", (37, 53), torch.uint8),
        "halves": made("slices.halves", (37, 53), torch.bfloat16),
        "floats": made("slices.floats", (37, 53)),
        "longs": made("slices.longs", (37, 53), torch.int64),
        "complex": made("slices.complex", (19, 23), torch.complex128),
        "pairs": made("slices.pairs", (8, 6), torch.float4_e2m1fn_x2),
        "one_row": made("slices.one_row", (1, 53)),
        "one_column": made("slices.one_column", (37, 1)),
        "transposed": made("slices.transposed", (53, 37)).t(),
        "permuted": made("slices.permuted", (11, 5, 7), torch.int16).permute(1, 2, 0),
        "image": image,
        "channels_last": image.contiguous(memory_format=torch.channels_last),
        "conj": finite("slices.conj", (9, 8), torch.complex64).mH,
        "five": made("slices.five", (3, 4, 2, 5, 3), torch.uint16),
        # Rows of 40 KiB, so that a reader which joins near ranges has a choice.
        "wide": made("slices.wide", (24, 10 * KIB)),
    }
    return simple(out, "slices", state, all_boxes(state))


def in_chunks(name, shape, borders, dtype=torch.float32):
    """A tensor to be saved in chunks, the last chunk first; and the same
    tensor as it is."""
    whole = made(name, shape, dtype)
    pieces = grid(shape, borders)[::-1]
    starts, chunk_sizes = [start for start, _ in pieces], [size for _, size in pieces]
    return checkpointable(whole.clone(), shape, starts, starts, chunk_sizes), whole


def chunks(out):
    """Tensors stored in many chunks, by one process."""
    made_of = {
        "rows": in_chunks("chunks.rows", (29, 8), [range(0, 29, 3), [0]]),
        "columns": in_chunks("chunks.columns", (9, 26), [[0], [0, 1, 2, 7, 20, 25]], torch.int64),
        "grid": in_chunks("chunks.grid", (24, 20), [[0, 5, 6, 17], [0, 4, 8, 19]], torch.bfloat16),
        "cube": in_chunks("chunks.cube", (6, 7, 8), [[0, 2, 5], [0, 3], [0, 1, 6]], torch.uint8),
    }
    save(out / "chunks", {name: local for name, (local, _) in made_of.items()})
    whole = {name: whole for name, (_, whole) in made_of.items()}
    return recorded("chunks", FileSystemReader(out / "chunks"), whole, slices=all_boxes(whole))


# ---------------------------------------------------------------- keys and objects


def objects(out):
    state = {
        "int": 7, "big_int": 1 << 70, "float": 0.1, "true": True, "none": None,
        "string": "step 7, größer", "bytes": bytes(range(256)), "list": [1, "two", 3.0, None],
        "tuple": (1, (2, 3)), "empty_list": [], "nested_list": [[1], [2, [3]]],
        "tuple_with_tensor": (1, made("objects.tensor", (3, 4))),
        "dtype": torch.bfloat16, "size": torch.Size([2, 3]),
        "mebibyte": made("objects.mebibyte", (MIB,), torch.uint8).numpy().tobytes(),
        "tensor": made("objects.tensor", (5,)),
    }  # fmt: skip
    return simple(out, "objects", state)


def nested(out):
    layers = [{"weight": made(f"nested.{i}", (4, i + 1)), "name": f"layer {i}"} for i in range(3)]
    state = {
        "model": {"layers": layers, "head": {"bias": made("nested.bias", (7,))}},
        "by_number": {0: made("nested.0", (2, 2)), 10: made("nested.10", (3,)), -1: "minus one"},
        "list": [made("nested.list", (3,)), 5, [made("nested.inner", (2,)), "text"]],
        "pair": (made("nested.pair", (2,)), 1),
        "empty": {},
        7: made("nested.7", (3, 3), torch.int32),
    }
    return simple(out, "nested", state)


def names(out):
    odd = ["", " ", ".", "a.b", "größe", "重み.0", "emoji 🙂", "../up", "/root", "n" * 300]
    odd += ["quote \" and '", "back\\slash", "line\nbreak", "nul\0"]
    state = {n: made(f"names.{n}", (i + 1,), torch.uint8) for i, n in enumerate(odd)}
    return simple(out, "names", state)


def not_flattened(out):
    """With flatten_state_dict=False a nested dict is one object, tensors and
    all, and the metadata has no planner_data."""
    state = {"weight": made("not_flattened.weight", (6, 5)), "step": 3}
    nested = {"inner": {"weight": made("not_flattened.inner", (3,)), "rate": 0.5}}
    save(out / "not_flattened", state | nested, DefaultSavePlanner(flatten_state_dict=False))
    return recorded("not_flattened", FileSystemReader(out / "not_flattened"), flat(state))


def many(out):
    """Enough keys that the pickle's memo needs its long opcodes."""
    state = {f"layer.{i}.{k}": made(f"many.{i}.{k}", (i % 7, 3)) for i in range(60) for k in "ab"}
    return simple(out, "many", state | {f"step.{i}": i for i in range(30)})


# ---------------------------------------------------------------- files


@contextlib.contextmanager
def attribute(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def files(out):
    yield simple(out, "files_one", sample())
    yield simple(out, "files_threads", sample(), thread_count=3)
    yield simple(out, "files_per_item", sample(), single_file_per_rank=False)
    both = {"single_file_per_rank": False, "thread_count": 3}
    yield simple(out, "files_per_item_threads", sample(), **both)
    for alignment in (1, 64, 4096):
        with config.patch({"save.storage_alignment": alignment}):
            yield simple(out, f"align_{alignment}", sample())
    with config.patch({"save.compute_crc32": False}):
        yield simple(out, "crc_off", sample())
    with config.patch({"save.compute_crc32": True}):
        yield simple(out, "crc_on", sample())


def to_compress():
    """The sample, and items of many blocks: zstd's are of at most 128 KiB,
    and torch's window is 2 MiB."""
    period = made("compressed.period", (MIB // 2,), torch.uint8)
    return sample() | {
        "random": made("compressed.random", (300 * KIB,), torch.uint8),
        "zeros": torch.zeros(700, 1000),
        "repeats": period.repeat(5),
        "text": "a line of text\n" * 20_000,
    }


def compressed(out):
    zstd = extension.ZStandard
    state = to_compress()
    yield simple(out, "zstd", state, _extensions=[zstd()])
    yield simple(out, "zstd_twice", state, _extensions=[zstd(), zstd()])
    yield simple(out, "zstd_per_item", sample(), _extensions=[zstd()], single_file_per_rank=False)
    # torch takes pyzstd only where zstandard is missing.
    for name, times in (("zstd_pyzstd", 1), ("zstd_pyzstd_twice", 2)):
        with attribute(extension, "zstandard", None):
            by_pyzstd = simple(out, name, state, _extensions=[zstd() for _ in range(times)])
        case = recorded(name, FileSystemReader(out / name), flat(state))
        if case != by_pyzstd:
            raise AssertionError(f"{name}: zstandard and pyzstd decode differently")
        yield case


def copied(out, source, name):
    shutil.copytree(out / source, out / name)
    return out / name


TENSORS = (dtypes, quantized, layouts, layouts_in_full_storage, layouts_lazy, shapes, sizes)
PARTS = (slices, chunks)
KEYS = (objects, nested, names, not_flattened, many)


def make(out):
    for one in TENSORS + PARTS + KEYS:
        yield one(out)
    yield from files(out)
    yield from compressed(out)
