"""Survey the pages of a Parquet column, below what pyarrow exposes.

The point of these files is what happens at page borders, and pyarrow's
metadata ends at column chunks.  This module walks the page headers itself, so
that make.py can record what a file really has in it instead of trusting that
a small page size did what was hoped.

Run as a program it prints one line for each file of expected.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATA_V1, DICTIONARY, DATA_V2 = 0, 2, 3

ENCODINGS = {
    0: "PLAIN",
    2: "PLAIN_DICTIONARY",
    3: "RLE",
    4: "BIT_PACKED",
    5: "DELTA_BINARY_PACKED",
    8: "RLE_DICTIONARY",
    9: "BYTE_STREAM_SPLIT",
}

# From the name in pyarrow's metadata to the one its decompressor wants.  The
# metadata says LZ4 for LZ4_RAW; the older framed LZ4 no writer here makes.
CODECS = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4_raw",
    "LZ4_RAW": "lz4_raw",
}


@dataclass
class Page:
    row_group: int
    kind: int  # DATA_V1, DATA_V2 or DICTIONARY
    values: int  # level entries; in a dictionary page, its ids
    encoding: str
    crc: bool  # there is a checksum
    stored: bool  # the values are not compressed
    rows: int = 0  # rows that begin in this page
    mid_row: bool = False  # the first entry belongs to the row before


class Compact:
    """Just enough of Thrift's compact protocol to read a page header."""

    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        value = shift = 0
        while True:
            b = self.byte()
            value |= (b & 0x7F) << shift
            if b < 0x80:
                return value
            shift += 7

    def zigzag(self):
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def value(self, kind):
        if kind in (1, 2):
            return kind == 1  # a boolean field's value is in its type
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 8:
            n = self.varint()
            self.at += n
            return bytes(self.data[self.at - n : self.at])
        if kind == 12:
            return self.struct()
        raise ValueError(f"thrift type {kind} does not occur in a page header")

    def struct(self):
        fields, field = {}, 0
        while head := self.byte():
            field = field + (head >> 4) if head >> 4 else self.zigzag()
            fields[field] = self.value(head & 15)
        return fields


def repetition_levels(data, count):
    """Decode RLE/bit-packed levels of one bit: no list here is nested."""
    r, levels = Compact(data), []
    while len(levels) < count:
        head = r.varint()
        if head & 1:
            for _ in range(head >> 1):
                packed = r.byte()
                levels += [packed >> i & 1 for i in range(8)]
        else:
            levels += [r.byte()] * (head >> 1)
    return levels[:count]


def chunk_pages(data, chunk, group):
    # Not the smaller of the two: a chunk of no rows can have a dictionary page
    # and, for want of a data page, a data page offset of 0.
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    at, found = start, []
    # To the end of the chunk, not to its last value: pages without any value
    # exist, and one may come last.
    while at < start + chunk.total_compressed_size:
        r = Compact(data, at)
        header = r.struct()
        body, at = r.at, r.at + header[3]
        kind = header[1]
        head = header[{DATA_V1: 5, DICTIONARY: 7, DATA_V2: 8}[kind]]
        encoding = head[4] if kind == DATA_V2 else head[2]
        stored = chunk.compression == "UNCOMPRESSED"
        if kind == DATA_V2:
            stored = stored or head.get(7) is False
        page = Page(group, kind, head[1], ENCODINGS[encoding], 4 in header, stored)
        found.append(page)
        if kind == DICTIONARY:
            continue
        if kind == DATA_V1:
            raw = data[body:at]
            if not stored:
                raw = pa.decompress(raw, header[2], CODECS[chunk.compression], True)
            size = int.from_bytes(raw[:4], "little")
            levels = repetition_levels(raw[4 : 4 + size], page.values)
        else:
            levels = repetition_levels(data[body : body + head[6]], page.values)
        page.rows = levels.count(0)
        page.mid_row = levels[:1] == [1]
        if kind == DATA_V2 and head[3] != page.rows:
            raise ValueError(f"row group {group}: a page says {head[3]} rows, has {page.rows}")
    return found


def pages(path, column):
    """All pages of the single leaf under `column`, in the file's order.

    Raises ValueError where pages and footer do not add up.
    """
    data = Path(path).read_bytes()
    metadata = pq.read_metadata(path)
    found = []
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        chunk = next(
            c
            for c in map(group.column, range(group.num_columns))
            if c.path_in_schema.split(".")[0] == column
        )
        part = chunk_pages(data, chunk, g)
        values = sum(p.values for p in part if p.kind != DICTIONARY)
        if values != chunk.num_values or sum(p.rows for p in part) != group.num_rows:
            raise ValueError(f"{path}: row group {g}: pages and footer differ")
        found += part
    return found


def summary(path, column):
    """The counts that expected.json keeps."""
    found = pages(path, column)
    body = [p for p in found if p.kind != DICTIONARY]
    return {
        "data": len(body),
        "dictionary": len(found) - len(body),
        "mid_row": sum(p.mid_row for p in body),
        "empty": sum(p.values == 0 for p in body),
        "stored": sum(p.stored for p in body),
    }


def main():
    here = Path(__file__).resolve().parent
    expected = json.loads((here / "expected.json").read_text())
    for entry in expected["files"] + expected["odd"]:
        found = pages(here / entry["file"], entry["column"])
        body = [p for p in found if p.kind != DICTIONARY]
        counts = " ".join(f"{k} {v:3} " for k, v in entry["pages"].items())
        print(
            f"{entry['file']:38} groups {entry['row_groups']:2}  {counts} "
            f"checksums {sum(p.crc for p in found):2}  "
            + "+".join(sorted({"v2" if p.kind == DATA_V2 else "v1" for p in body}))
            + " "
            + "+".join(sorted({p.encoding for p in body}))
        )


if __name__ == "__main__":
    main()
