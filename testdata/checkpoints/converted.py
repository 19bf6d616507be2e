"""Does what `shardfeed ckpt convert` writes open with the safetensors package, and equal what torch reads?

`python converted.py SHARDFEED MATRIX`: MATRIX is what `matrix.py` wrote. Every case is converted in a directory that is removed
again; every tensor is compared by hash with what torch's own reader gave. Floating-point ones are also cast, and compared with
torch's cast. `ckpt verify` must find nothing wrong with any of them. Prints counts, and fails at the first difference.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch

# What the format has no name for.
LEFT_OUT = {"torch.complex32", "torch.complex128", "torch.bcomplex32"}
CAST = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def sha256(data) -> str:
    return hashlib.sha256(data).hexdigest()


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes; those without elements have none."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same_numbers(wanted: torch.Tensor, found: torch.Tensor) -> bool:
    """Bit for bit, but for what is no number: that has many bit patterns, and which one a cast gives is nobody's promise."""
    if raw(wanted) == raw(found):
        return True
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[wanted.itemsize]
    wanted, found = wanted.contiguous(), found.contiguous()
    is_number = ~wanted.isnan()
    return torch.equal(is_number, ~found.isnan()) and torch.equal(wanted.view(bits)[is_number], found.view(bits)[is_number])


def convert(program: str, source: Path, out: Path, *arguments: str) -> list[Path]:
    subprocess.run([program, "ckpt", "convert", str(source), str(out), *arguments], check=True, stdout=subprocess.DEVNULL)
    files = sorted(out.glob("*.safetensors"))
    assert files and (len(files) == 1 or (out / "model.safetensors.index.json").is_file())
    return files


def shape_of(entry: dict) -> list[int]:
    """The format counts elements of four bits one by one, torch in pairs."""
    shape = list(entry["shape"])
    return shape[:-1] + [shape[-1] * 2] if entry["dtype"] == "torch.float4_e2m1fn_x2" else shape


def can_be_held(entry: dict) -> bool:
    """Two elements of four bits are no tensor without dimensions there."""
    is_pair = entry["dtype"] == "torch.float4_e2m1fn_x2" and not entry["shape"]
    return entry["dtype"] not in LEFT_OUT and not is_pair


def compare(program: str, root: Path, case: dict, scratch: Path) -> tuple[int, int]:
    arguments = ["--file-size", "20000"]
    if "rank" in case:
        arguments += ["--rank", str(case["rank"])]
    source = root / case["path"]
    # A rank that saved for itself knows parts of tensors only, which is no whole checkpoint.
    if "rank" not in case:
        verified = subprocess.run([program, "ckpt", "verify", str(source)], capture_output=True, text=True)
        assert verified.returncode == 0, (case["name"], verified.stdout, verified.stderr)
    listed = json.loads(
        subprocess.run([program, "ckpt", "inspect", str(source), "--json", *arguments[2:]], check=True, capture_output=True).stdout
    )
    # Ranks that saved for themselves may know a part of a tensor only; the answers name those that are whole.
    expected = {k: v for k, v in case["tensors"].items() if can_be_held(v)}
    if not expected:
        return 0, 0
    for tensor in listed["tensors"]:
        if tensor["name"] not in expected:
            arguments += [f"--exclude={escaped(tensor['name'])}"]
    files = convert(program, source, scratch / "same", *arguments)
    found = {name: entry for file in files for name, entry in safetensors.deserialize(file.read_bytes())}
    assert found.keys() == expected.keys(), (case["name"], found.keys() ^ expected.keys())
    for name, entry in expected.items():
        assert found[name]["shape"] == shape_of(entry), (case["name"], name)
        assert sha256(bytes(found[name]["data"])) == entry["sha256"], (case["name"], name)
    # By the function that people use, as far as it knows the types.
    known = {str(t) for t in safetensors.torch._TYPES.values()}
    if all(entry["dtype"] in known for entry in expected.values()):
        loaded = {k: v for file in files for k, v in safetensors.torch.load_file(file).items()}
        assert all(str(loaded[k].dtype) == v["dtype"] and sha256(raw(loaded[k])) == v["sha256"] for k, v in expected.items())
        for dtype in CAST:
            short = str(dtype).removeprefix("torch.")
            cast = convert(program, source, scratch / short, "--dtype", short, *arguments)
            cast = {k: v for file in cast for k, v in safetensors.torch.load_file(file).items()}
            for name, tensor in loaded.items():
                wanted = tensor.to(dtype) if tensor.dtype in CAST else tensor
                assert cast[name].dtype == wanted.dtype, (case["name"], name, dtype)
                assert same_numbers(wanted, cast[name]), (case["name"], name, dtype)
        return len(expected), len(loaded) * len(CAST)
    return len(expected), 0


def escaped(name: str) -> str:
    """A name as a glob that matches nothing else."""
    return "".join(f"[{c}]" if c in "*?[]" else c for c in name)


def main() -> None:
    program, root = sys.argv[1], Path(sys.argv[2])
    tensors = cast = 0
    for case in json.loads((root / "cases.json").read_text())["cases"]:
        if case.get("unsupported"):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            one, other = compare(program, root, case, Path(scratch))
        tensors, cast = tensors + one, cast + other
    assert tensors > 1000 and cast > 500, (tensors, cast)
    print(f"{tensors} converted tensors equal what torch reads, {cast} casts what torch casts")


if __name__ == "__main__":
    main()
