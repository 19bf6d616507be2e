"""The token rows that the files hold.  Needs nothing but Python."""

U16_MAX = 2**16 - 1
I32_MAX = 2**31 - 1
U32_MAX = 2**32 - 1


class Lcg:
    """A fixed generator: Python's own may change its output between releases."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        # Knuth's MMIX constants; only the high half, the low bits of an LCG
        # having short periods.
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 32) * bound >> 32


def ids(lcg, count, bound):
    return [lcg.below(bound) for _ in range(count)]


def prose(lcg, count, bound):
    """Ids among which short phrases come back.

    Noise does not compress, and a writer of version 2 pages stores a page as
    it is when compression does not shrink it: with noise alone, no codec
    would ever be exercised there.
    """
    row = []
    while len(row) < count:
        phrase = ids(lcg, 1 + lcg.below(4), bound)
        row += phrase * (1 if lcg.below(3) == 0 else 2 + lcg.below(8))
    return row[:count]


def make():
    sets = {}

    lcg = Lcg(1)
    # Both extremes are placed by hand, so that no seed can lose them.
    lengths = [1, 60] + [1 + lcg.below(60) * lcg.below(60) // 60 for _ in range(38)]
    sets["plain"] = [prose(lcg, n, 50_000) for n in lengths]

    # Nulls and empties at both ends, in runs, next to each other in both
    # orders, and (rows 11 to 16) a stretch that can cover a whole small page.
    lcg = Lcg(2)
    gaps = [prose(lcg, 1 + lcg.below(36), 50_000) for _ in range(40)]
    for i in (0, 5, 8, 9, 12, 13, 14, 22, 30, 39):
        gaps[i] = None
    for i in (1, 6, 11, 15, 16, 23, 24, 31, 38):
        gaps[i] = []
    sets["gaps"] = gaps
    # The same for columns whose lists are declared non-null.
    sets["empties"] = [row or [] for row in gaps]

    lcg = Lcg(3)
    sets["fixed"] = [ids(lcg, 16, 50_000) for _ in range(24)]
    sets["fixed_gaps"] = [
        None if i in (0, 7, 8, 23) else row for i, row in enumerate(sets["fixed"])
    ]

    # Runs of 8 and more turn into RLE runs of dictionary indices, the short
    # ones between them into bit-packed groups.
    lcg = Lcg(4)
    repeats = []
    for i in range(30):
        row = []
        for _ in range(1 + i % 4):
            run = 1 + lcg.below(6) if lcg.below(3) == 0 else 20 + lcg.below(30)
            row += [7 * (1 + lcg.below(5))] * run
        repeats.append(row)
    sets["repeats"] = repeats

    # One set per largest id, for a column can only hold what its type can.
    # The limits and the neighbours of narrower limits are in the first row.
    for name, top in (("wide", U32_MAX), ("wide_i32", I32_MAX), ("wide_u16", U16_MAX)):
        lcg = Lcg(5)
        edge = [0, 1, 127, 128, 255, 256, 32_767, 32_768, top - 1, top]
        rows = [edge] + [ids(lcg, 1 + lcg.below(24), top) for _ in range(16)]
        sets[name] = rows + [[top], [top, 0, top, 0]]

    # Far more tokens to a row than a page of these files holds, and few
    # enough distinct ids that the files stay small.
    lcg = Lcg(6)
    sets["long"] = [ids(lcg, n, 60) for n in (3000, 2, 4200, 1)]

    # DuckDB rounds ROW_GROUP_SIZE up to its vectors of 2,048 rows: only a set
    # larger than that shows it making several groups by row count.
    lcg = Lcg(7)
    many = []
    for _ in range(4300):
        n = lcg.below(4)
        many.append(None if n == 3 and lcg.below(4) == 0 else ids(lcg, n % 3, 10))
    sets["many"] = many

    # No token at all, yet as many level entries as rows.
    sets["hollow"] = [None, [], [], None, None, []] * 4
    sets["one"] = [[50_256, 0, 1]]
    sets["none"] = []
    return sets


ROWSETS = make()
