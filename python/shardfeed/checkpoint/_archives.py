"""Checksums of the archives that `torch.save` writes, for items that native code has not seen."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

# What an archive begins with. Planners may store other things.
_ARCHIVE = b"PK\x03\x04"

# Before a record's bytes: thirty bytes, the last four of which are the lengths of its name and of what follows that.
_RECORD_HEAD_BYTES = 30


def wrong_record(item: bytes) -> str | None:
    """The first record of an archive whose bytes are not those that were saved, and both checksums; `None` if there is none.

    Torch leaves a checksum at 0 if it was told to compute none.
    """
    if not item.startswith(_ARCHIVE):
        return None
    data = memoryview(item)
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        for record in archive.infolist():
            if record.CRC == 0:
                continue
            name_bytes, extra_bytes = struct.unpack_from("<HH", item, record.header_offset + _RECORD_HEAD_BYTES - 4)
            start = record.header_offset + _RECORD_HEAD_BYTES + name_bytes + extra_bytes
            found = zlib.crc32(data[start : start + record.compress_size])
            if found != record.CRC:
                return f"record {record.filename} has the checksum {found:08x}, and {record.CRC:08x} was recorded when it was saved"
    return None
