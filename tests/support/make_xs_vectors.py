#!/usr/bin/python3
"""Makes the golden vectors of mode XS in tests/data/codec.

An encoder and a decoder of XS, written from docs/FORMAT.md and sharing nothing
with the C++: every vector is made by the one and checked by the other.  Needs
nothing but Python.  Given the same blocks it writes the same files.

    make_xs_vectors.py tests/data/codec
"""

import json
import os
import random
import sys

CLASSES = 12
KINDS = {0: (8, 0, 0), 1: (16, 7, 0xFF), 2: (16, 10, 0x1F),
         3: (32, 23, 0xFF), 4: (8, 3, 0xF), 5: (8, 2, 0x1F)}   # w, shift, mask


class Refused(Exception):
    pass


def require(condition, reason):
    if not condition:
        raise Refused(reason)


# Elements -------------------------------------------------------------------

def elements(data, kind):
    step = KINDS[kind][0] // 8
    return [int.from_bytes(data[i:i + step], "little")
            for i in range(0, len(data), step)]


def to_bytes(values, kind):
    return b"".join(v.to_bytes(KINDS[kind][0] // 8, "little") for v in values)


def ordered(x, kind):
    sign = 1 << (KINDS[kind][0] - 1)
    if kind == 0:
        return x
    return 2 * sign - 1 - x if x & sign else x | sign


def unordered(x, kind):
    sign = 1 << (KINDS[kind][0] - 1)
    if kind == 0:
        return x
    return x ^ sign if x & sign else 2 * sign - 1 - x


def classes(old, kind, ebase):
    _, shift, mask = KINDS[kind]
    members = [[] for _ in range(CLASSES)]
    for index, x in enumerate(old):
        e = (x >> shift) & mask
        members[min(max(e - ebase, 0), CLASSES - 1)].append(index)
    return members


def rice(total, listed):
    if listed == 0:
        return 0
    return max(0, ((2 * total - listed) // (2 * listed)).bit_length() - 1)


# Bits: strings of 0 and 1, the first one is bit 0 ---------------------------

def field(value, width):
    assert 0 <= value < 1 << width
    return "".join(str(value >> i & 1) for i in range(width))


def unary(value):
    return "0" * value + "1"


def pack(bits):
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[i:i + 8][::-1], 2) for i in range(0, len(bits), 8))


def unpack(data):
    return "".join(f"{byte:08b}"[::-1] for byte in data)


def exp_golomb(a, order):
    """b - s and the low bits."""
    v = a + (1 << order)
    b = v.bit_length() - 1
    return b - order, field(v - (1 << b), b)


# Encoder --------------------------------------------------------------------

def gaps(numbers):
    return [b - a - 1 for a, b in zip([-1] + numbers, numbers)]


def parts_of(old, new, kind, ebase, z):
    """Everything that a block of these choices holds, still apart."""
    width = KINDS[kind][0]
    half = 1 << (width - 1)
    counts, codes, lows, signs = [], [], [], ""
    direct, unit = [], []
    for c, members in enumerate(classes(old, kind, ebase)):
        ranks = [r for r, i in enumerate(members) if old[i] != new[i]]
        counts.append(len(ranks))
        for i in (members[r] for r in ranks):
            d = ordered(new[i], kind) - ordered(old[i], kind)
            d = (d + half) % (2 * half) - half
            signs += "1" if d < 0 else "0"
            if c < z:
                direct.append((abs(d) - 1, min(width - 1, z - 1 - c)))
            else:
                unit.append(abs(d))
        if 2 * len(ranks) > len(members):
            ranks = sorted(set(range(len(members))) - set(ranks))
        k = rice(len(members), len(ranks))
        codes += [gap >> k for gap in gaps(ranks)]
        lows += [field(gap & ((1 << k) - 1), k) for gap in gaps(ranks)]
    listed = [i for i, size in enumerate(unit) if size > 1]
    k = rice(len(unit), len(listed))
    codes += [gap >> k for gap in gaps(listed)]
    lows += [field(gap & ((1 << k) - 1), k) for gap in gaps(listed)]
    values = [exp_golomb(*x) for x in direct]
    values += [exp_golomb(unit[i] - 2, 0) for i in listed]
    return {"ebase": ebase, "z": z, "counts": counts + [len(listed)],
            "codes": codes + [v[0] for v in values], "signs": signs,
            "lows": lows, "values": [v[1] for v in values]}


def unary_plane(parts):
    return pack("".join(unary(x) for x in parts["codes"]))


def coded_counts(counts, order):
    coded = [exp_golomb(count, order) for count in counts]
    return "".join(unary(high) + low for high, low in coded)


def assemble(parts, order=None, ulen=None, counts=None, behind_u=b""):
    if order is None:
        order = min(range(16), key=lambda s: len(coded_counts(parts["counts"], s)))
    if counts is None:
        counts = coded_counts(parts["counts"], order)
    u = unary_plane(parts) + behind_u
    rest = parts["signs"] + "".join(parts["lows"]) + "".join(parts["values"])
    head = [5, parts["ebase"], len(u) if ulen is None else ulen,
            parts["z"] + 16 * order]
    return bytes(head) + pack(counts) + u + pack(rest)


# Decoder --------------------------------------------------------------------

class Reader:
    def __init__(self, bits):
        self.bits, self.at = bits, 0

    def take(self, width):
        require(self.at + width <= len(self.bits), "too short")
        self.at += width
        return sum(1 << i for i in range(width)
                   if self.bits[self.at - width + i] == "1")

    def unary(self):
        end = self.bits.find("1", self.at)
        require(end >= 0, "too short")
        value, self.at = end - self.at, end + 1
        return value

    def end(self):
        rest = self.bits[self.at:]
        require(len(rest) < 8, "bytes behind the end")
        require("1" not in rest, "padding")


def read_counts(data, order):
    reader = Reader(unpack(data))
    counts = []
    for _ in range(CLASSES + 1):
        b = reader.unary() + order
        require(b <= 16, "count too wide")
        counts.append((1 << b) + reader.take(b) - (1 << order))
    size = -(-reader.at // 8)
    require("1" not in reader.bits[reader.at:8 * size], "padding of the counts")
    return counts, size


def numbers_of(gap_list, limit, reason):
    numbers, last = [], -1
    for gap in gap_list:
        last += gap + 1
        require(last < limit, reason)
        numbers.append(last)
    return numbers


def decode(block, old, kind):
    width = KINDS[kind][0]
    require(len(block) <= 1 + len(old) * width // 8, "too long")
    require(len(block) >= 4, "too short")
    ebase, ulen, z, order = block[1], block[2], block[3] % 16, block[3] // 16
    counts, size = read_counts(block[4:], order)
    changed, exceptions = counts[:-1], counts[-1]
    members = classes(old, kind, ebase)
    n, nd = sum(changed), sum(changed[:z])
    require(all(c <= len(m) for c, m in zip(changed, members)), "count above total")
    require(n > 0, "no change")
    require(exceptions <= n - nd, "more exceptions than unit changes")

    require(4 + size + ulen <= len(block), "U too short")
    u = block[4 + size:4 + size + ulen]
    codes = Reader(unpack(u))
    inverted = [2 * c > len(m) for c, m in zip(changed, members)]
    lists = [len(m) - c if i else c for c, m, i in zip(changed, members, inverted)]
    expected = sum(lists) + exceptions + nd + exceptions
    require(codes.bits.count("1") == expected, "number of codes in U")
    require(u == b"" or u[-1] != 0, "slack in U")

    rest = Reader(unpack(block[4 + size + ulen:]))
    signs = [rest.take(1) for _ in range(n)]
    where = []
    for m, count, is_inverted in zip(members, lists, inverted):
        k = rice(len(m), count)
        ranks = set(numbers_of([(codes.unary() << k) + rest.take(k) for _ in range(count)],
                               len(m), "rank out of range"))
        where += [i for r, i in enumerate(m) if (r in ranks) != is_inverted]
    k = rice(n - nd, exceptions)
    listed = numbers_of([(codes.unary() << k) + rest.take(k) for _ in range(exceptions)],
                        n - nd, "exception out of range")
    orders = [min(width - 1, z - 1 - c) for c in range(min(z, CLASSES))
              for _ in range(changed[c])]
    numbers = []
    for order in orders + [0] * exceptions:
        b = codes.unary() + order
        require(b < width, "magnitude out of range")
        numbers.append((1 << b) + rest.take(b) - (1 << order))
    rest.end()
    sizes = [a + 1 for a in numbers[:nd]] + [1] * (n - nd)
    for at, a in zip(listed, numbers[nd:]):
        sizes[nd + at] = a + 2
    new = list(old)
    for i, size, sign in zip(where, sizes, signs):
        require(size <= (1 << (width - 1)) - 1 + sign, "magnitude out of range")
        d = -size if sign else size
        new[i] = unordered((ordered(old[i], kind) + d) % (1 << width), kind)
    return new


# Vectors --------------------------------------------------------------------

class Folder:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, "vectors.json"), encoding="utf-8") as f:
            self.listing = json.load(f)
        for name in ("cases", "refuse"):
            self.listing[name] = [x for x in self.listing[name]
                                  if not x["name"].startswith("xs_")]

    def read(self, name):
        with open(os.path.join(self.path, name), "rb") as f:
            return f.read()

    def write(self, name, data):
        with open(os.path.join(self.path, name), "wb") as f:
            f.write(data)
        return name

    def add_case(self, name, kind, old_file, new, block, choices, new_file=None):
        """`new` as a file that is there, or as the elements that differ."""
        old = elements(self.read(old_file), kind)
        assert decode(block, old, kind) == new, name
        changed = [[i, b] for i, (a, b) in enumerate(zip(old, new)) if a != b]
        vector = {"name": "xs_" + name, "kind": kind, "mode": "XS", "old": old_file,
                  "block": self.write(f"xs_{name}.bin", block), "changed": len(changed)}
        vector.update(choices)
        vector.update({"new": new_file} if new_file else {"set": changed})
        self.listing["cases"].append(vector)

    def add_refusal(self, name, kind, old_file, block, reason):
        try:
            decode(block, elements(self.read(old_file), kind), kind)
        except Refused as refused:
            assert str(refused) == reason, (name, str(refused))
        else:
            raise AssertionError("accepted: " + name)
        self.listing["refuse"].append(
            {"name": "xs_" + name, "kind": kind, "old": old_file, "reason": reason,
             "block": self.write(f"refuse_xs_{name}.bin", block)})

    def save(self):
        lists = (f'"{name}": [\n' + ",\n".join(
            "  " + json.dumps(x, sort_keys=True) for x in self.listing[name]) + "\n]"
            for name in ("cases", "refuse"))
        self.write("vectors.json", ("{\n" + ",\n".join(lists) + "\n}\n").encode())


def sparse(rng, old, kind, share):
    """The smaller an element, the more often it moves, and the further."""
    _, shift, mask = KINDS[kind]
    new = list(old)
    for i, x in enumerate(old):
        octaves = 120 - ((x >> shift) & mask)
        if rng.random() < share * 2.0 ** octaves:
            far = rng.random() < 0.2
            new[i] = x + rng.choice((-1, 1)) * (rng.randrange(2, 6) if far else 1)
            new[i] %= 1 << KINDS[kind][0]
    return new


def add_small_blocks(folder):
    """The blocks of the vectors of XR that XS can express, with the same choices."""
    for vector in list(folder.listing["cases"]):
        if vector["mode"] != "XR" or "new" not in vector:
            continue
        kind = vector["kind"]
        old, new = (elements(folder.read(vector[x]), kind) for x in ("old", "new"))
        parts = parts_of(old, new, kind, vector["ebase"], vector["z"])
        if len(unary_plane(parts)) > 255 or parts["z"] > 15:
            continue
        folder.add_case(vector["name"].split(".")[0], kind, vector["old"], new,
                        assemble(parts), {"ebase": vector["ebase"], "z": vector["z"], "is_chosen": True},
                        vector["new"])


def add_sparse_blocks(folder):
    rng = random.Random(1)
    for name, share in (("real_mlp", 3e-4), ("real_embedding", 1e-4), ("real_bias", 1e-3)):
        old = elements(folder.read(name + ".old.bin"), 1)
        new = sparse(rng, old, 1, share)
        block = assemble(parts_of(old, new, 1, 111, 1))
        folder.add_case(name + "_sparse", 1, name + ".old.bin", new, block,
                        {"ebase": 111, "z": 1})


def add_edges(folder):
    old = elements(folder.read("real_bias.old.bin"), 1)
    for name, index in (("first", 0), ("last", len(old) - 1)):
        new = list(old)
        new[index] ^= 0x8001
        folder.add_case(name, 1, "real_bias.old.bin", new,
                        assemble(parts_of(old, new, 1, 110, 15)), {"ebase": 110, "z": 15})
    new = elements(folder.read("real_bias.new.bin"), 1)
    for order in range(16):
        folder.add_case(f"order_{order}", 1, "real_bias.old.bin", new,
                        assemble(parts_of(old, new, 1, 110, order), order), {},
                        "real_bias.new.bin")
    # Every element changed: one class, inverted, without a code.
    new, block = all_changed(elements(folder.read("u8_small.old.bin"), 0))
    folder.add_case("all", 0, "u8_small.old.bin", new, block, {"ebase": 0, "z": 0},
                    folder.write("xs_all.new.bin", to_bytes(new, 0)))
    old = elements(folder.read("u8_last.old.bin"), 0)
    new = list(old)
    new[40000] = 255
    folder.add_case("u8_one", 0, "u8_last.old.bin", new,
                    assemble(parts_of(old, new, 0, 0, 0)), {"ebase": 0, "z": 0})
    old = elements(folder.read("bf16_5pct.old.bin"), 1)
    new = with_full_unary_plane(old)
    folder.add_case("ulen_255", 1, "bf16_5pct.old.bin", new,
                    assemble(parts_of(old, new, 1, 111, 0)), {"ebase": 111, "z": 0},
                    folder.write("xs_ulen_255.new.bin", to_bytes(new, 1)))


def with_full_unary_plane(old):
    """Just so many changes of more than one unit that U has 255 bytes."""
    order = list(range(len(old)))
    random.Random(2).shuffle(order)
    new = list(old)
    for i in order[:800]:
        new[i] += 1
    for i in order[:800]:
        new[i] += 2
        if len(unary_plane(parts_of(old, new, 1, 111, 0))) == 255:
            return new
    raise AssertionError


def all_changed(old):
    new = [(x + 1) % 256 for x in old]
    block = assemble(parts_of(old, new, 0, 0, 0))
    assert block[2] == 0
    return new, block


def add_refusals(folder):
    name = "real_bias.old.bin"
    old = elements(folder.read(name), 1)
    new = elements(folder.read("real_bias.new.bin"), 1)

    def refuse(label, reason, block):
        folder.add_refusal(label, 1, name, block, reason)

    def changed(edit, **form):
        parts = parts_of(old, new, 1, 110, 2)
        edit(parts)
        return assemble(parts, **form)

    def put(key, at, value):
        def edit(parts):
            parts[key][at] = value
        return edit

    def nothing(parts):
        pass

    good = changed(nothing)
    counts = parts_of(old, new, 1, 110, 2)["counts"]
    counts_bits = coded_counts(counts, good[3] // 16)
    refuse("header_cut", "too short", good[:3])
    refuse("counts_cut", "too short", good[:6])
    refuse("count_too_wide", "count too wide",
           changed(nothing, order=0, counts=coded_counts(counts[:-1], 0) + unary(17) + "0" * 17))
    refuse("count_too_wide_for_the_order", "count too wide",
           changed(nothing, order=15, counts=unary(2) + "0" * 17 + coded_counts(counts[1:], 15)))
    assert len(counts_bits) % 8
    refuse("padding_of_the_counts", "padding of the counts",
           changed(nothing, counts=counts_bits + "1"))
    refuse("count_above_total", "count above total", changed(put("counts", 3, 1537)))
    refuse("count_of_no_member", "count above total", changed(put("counts", 0, 60000)))
    refuse("no_change", "no change", assemble(
        {**parts_of(old, new, 1, 110, 2), "counts": [0] * 13, "codes": [], "signs": "",
         "lows": [], "values": []}))
    refuse("too_many_exceptions", "more exceptions than unit changes",
           changed(put("counts", 12, sum(counts[2:12]) + 1)))
    refuse("unary_plane_cut", "U too short", changed(nothing, ulen=200))
    refuse("code_missing", "number of codes in U", changed(lambda p: p["codes"].pop()))
    refuse("code_too_many", "number of codes in U", changed(lambda p: p["codes"].append(0)))
    refuse("slack_in_the_unary_plane", "slack in U", changed(nothing, behind_u=b"\0"))
    refuse("rank_out_of_range", "rank out of range",
           changed(put("codes", 0, 200)))
    codes = parts_of(old, new, 1, 110, 2)["codes"]
    exceptions_end = len(codes) - sum(counts[:2]) - counts[12]
    refuse("exception_out_of_range", "exception out of range",
           changed(put("codes", exceptions_end - 1, 40)))
    refuse("rest_cut", "too short", good[:-3])
    refuse("signs_cut", "too short", good[:4 + -(-len(counts_bits) // 8) + good[2] + 1])
    refuse("bytes_behind", "bytes behind the end", good + b"\0")
    assert sum(map(len, [parts_of(old, new, 1, 110, 2)["signs"]] +
                   parts_of(old, new, 1, 110, 2)["lows"] +
                   parts_of(old, new, 1, 110, 2)["values"])) % 8
    refuse("padding_of_the_rest", "padding", good[:-1] + bytes([good[-1] | 0x80]))

    def with_last_value(high, low):
        def edit(parts):
            parts["codes"][-1] = high
            parts["values"][-1] = low
        return edit

    # An exception of size v + 1 with b bits below its highest.
    refuse("magnitude_too_wide", "magnitude out of range",
           changed(with_last_value(16, "0" * 16)))
    refuse("magnitude_too_large", "magnitude out of range",
           changed(with_last_value(15, "0" * 15)))
    refuse("magnitude_without_its_sign", "magnitude out of range",
           largest(old, new, "0"))
    folder.add_case("largest_magnitude", 1, name, decode(largest(old, new, "1"), old, 1),
                    largest(old, new, "1"), {})


def largest(old, new, sign):
    """The last exception is one of 2^15 units."""
    parts = parts_of(old, new, 1, 110, 2)
    unit = [i for c in range(2, 12) for i in range(parts["counts"][c])]
    assert unit
    members = classes(old, 1, 110)
    moved = [ordered(new[i], 1) - ordered(old[i], 1) for m in members for i in m
             if old[i] != new[i]]
    last = max(i for i, d in enumerate(moved)
               if abs(d) > 1 and i >= sum(parts["counts"][:2]))
    parts["signs"] = parts["signs"][:last] + sign + parts["signs"][last + 1:]
    parts["codes"][-1] = 14
    parts["values"][-1] = "1" * 14
    return assemble(parts)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    folder = Folder(sys.argv[1])
    add_small_blocks(folder)
    add_sparse_blocks(folder)
    add_edges(folder)
    add_refusals(folder)
    folder.save()


if __name__ == "__main__":
    main()
