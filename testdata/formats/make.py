"""Writes one file of each stored format, from docs/formats.md alone.

The Rust code must read these and write the same bytes: two implementations of one page.
"""

import json
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent


def leb128(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(value):
    encoded = value.encode()
    return leb128(len(encoded)) + encoded


def manifest(version):
    files = [
        # name, size, modified, column, id type, level, nullable, row groups, {seq_len: sequences}
        ("a.parquet", 5000, 1_700_000_000_123_456_789, "input_ids", 2, 3, 1,
         [(100, 51_200, 98, 4, 2400, 1), (50, 300, 50, 2404, 700, 6)], {2048: [120, 50]}),
        ("b/ü.parquet", 12, -1, "token_ids", 4, 1, 0, [], {}),
    ]
    # By chunk start: length, checksum of the header, checksum of the body. Nothing was recorded of the second row group.
    pages = {4: [(300, 0x01234567, 0x89ABCDEF), (2000, 0, 0xFFFFFFFF), (100, 0xDEADBEEF, 1)]}
    payload = leb128(len(files))
    for name, size, modified, column, ids, level, nullable, groups, pieces in files:
        payload += text(name) + leb128(size) + struct.pack("<q", modified)
        payload += text(column) + bytes([ids, level, nullable])
        payload += leb128(len(groups))
        for *numbers, codec in groups:
            payload += b"".join(map(leb128, numbers)) + bytes([codec])
            if version >= 2:
                recorded = pages.get(numbers[3], [])
                payload += leb128(len(recorded))
                for length, header, body in recorded:
                    payload += leb128(length) + struct.pack("<II", header, body)
        payload += leb128(len(pieces))
        for seq_len, counts in pieces.items():
            payload += leb128(seq_len) + b"".join(map(leb128, counts))
    return b"SHFDMANI" + struct.pack("<IQI", version, len(payload), zlib.crc32(payload)) + payload


def state():
    fields = {
        "shardfeed_state": 1,
        "algorithm": 1,
        "fingerprint": "0123456789abcdef0123456789abcdef",
        "seed": 18446744073709551615,
        "epoch": 2,
        "position": 4242,
        "seq_len": 2048,
        "packing": "pad",
        "eos_id": None,
        "shuffle": True,
        "lanes": 128,
        "window": 64,
        "batches": [[0, 0, 64], [640, 10, 128]],
        "skipped": [[5000, 256], [9000, 1]],
        "check": "",
    }

    def dump():
        return json.dumps(fields, separators=(",", ":")).encode()

    fields["check"] = f"{zlib.crc32(dump()):08x}"
    return dump()


(HERE / "manifest-1").write_bytes(manifest(1))
(HERE / "manifest-2").write_bytes(manifest(2))
(HERE / "state-1.json").write_bytes(state())
