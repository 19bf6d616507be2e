"""Makes the files of this folder that were thought out; README.md says what each does. The others were found."""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent
GOOD = HERE.parent / "checksums"
INT_MAX = 2**31 - 1


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def in_footer(field):
    """A good file whose footer has one field more, which readers pass over."""
    file = (GOOD / "plain_none_v1.parquet").read_bytes()
    (length,) = struct.unpack("<I", file[-8:-4])
    footer = file[-8 - length : -8]
    assert footer[-1] == 0, "the footer ends with the end of a struct"
    footer = footer[:-1] + field + b"\0"
    return file[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def in_first_page_header(field):
    """The like for the header of the first page; the bytes after it move, and the chunk's end cuts them off."""
    file = (GOOD / "plain_none_v1.parquet").read_bytes()
    assert file[4:6] == b"\x15\x00", "a data page's type"
    at = 6
    for _ in range(2):  # two sizes
        assert file[at] == 0x15
        at += 1
        while file[at] >= 0x80:
            at += 1
        at += 1
    # The next field's number is counted from the one before: a number of its own says it again.
    assert file[at] == 0x15, "the checksum, field 4"
    return file[:at] + field + b"\x05\x08" + file[at + 1 :]


def lists_of_nothing(delta):
    """A field of a hundred lists of two billion truths each, which take no bytes."""
    return bytes([delta << 4 | 9, 0xF9]) + varint(100) + (b"\xf1" + varint(INT_MAX)) * 100


def doubles(delta):
    """A field of two billion doubles that are not there."""
    return bytes([delta << 4 | 9, 0xF7]) + varint(INT_MAX)


def dictionary_of(count, name):
    """A dictionary page that claims this many values."""
    file = (GOOD / name).read_bytes()
    assert file[4:6] == b"\x15\x04", "a dictionary page's type"
    header = file.index(b"\x3c\x15", 6) + 2
    assert file[header] < 0x80, "a small dictionary"
    return file[:header] + varint(2 * count) + file[header + 1 :]


def main():
    files = {
        "header_list_of_doubles": in_first_page_header(doubles(10)),
        "header_lists_of_truths": in_first_page_header(lists_of_nothing(10)),
        "footer_list_of_doubles": in_footer(doubles(10)),
        "footer_lists_of_truths": in_footer(lists_of_nothing(10)),
        "dictionary_of_two_billion_u32": dictionary_of(INT_MAX, "dict_none_v1.parquet"),
        "dictionary_of_two_billion_i64": dictionary_of(INT_MAX, "dict_gzip_v1.parquet"),
    }
    for name, data in files.items():
        (HERE / f"{name}.parquet").write_bytes(data)


if __name__ == "__main__":
    main()
