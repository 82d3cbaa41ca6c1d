#!/usr/bin/env python3
"""Compare Kimi's tokenizer with PyPI's tiktoken; run by hand, from the repository root.

    python3 tests/golden/tiktoken_parity.py [strings, 20000] [seed, 1]    compares
    python3 tests/golden/tiktoken_parity.py --write                       makes tests/golden/kimi/

First every code point's class, then random strings, then long ones that upstream's encode
cuts into chunks. The vocabulary is made of pieces of such strings, so that a cut in another
place gives other ids. Needs tiktoken (0.14.0 was used) and tokenizers.
"""
import base64, ctypes, json, pathlib, random, sys

import tiktoken

from tokenizer_parity import Err, Ours, WHITE, WORDS, library, random_text

HERE = pathlib.Path(__file__).parent / "kimi"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + TAIL,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + TAIL,
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
CLASSES = [r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}", None, r"\s", r"[\r\n]",
           r"[\p{Lu}\p{Lt}]", r"\p{Ll}", r"\p{Han}"]


def encoding(tokens, pattern=PATTERN, special=None):
    return tiktoken.Encoding("kimi", pat_str=pattern, special_tokens=special or {},
                             mergeable_ranks={t: i for i, t in enumerate(tokens)})


def check_classes(lib):
    """A character is in a class when two of it are one piece of (?:class){2}|any."""
    table = (ctypes.c_uint16 * 128).in_dll(lib, "mc_ucat_ascii")
    chars = [chr(c) for c in range(128, 0x110000) if not 0xd800 <= c < 0xe000]
    cats = [lib.mc_ucat_wide(ord(c)) for c in chars]
    bad = sum(bool(table[i] & 256) != chr(i).isupper() or bool(table[i] & 512) != chr(i).islower()
              for i in range(128))
    for at in range(0, len(chars), 20000):
        part = chars[at:at + 20000]
        tokens = [bytes([b]) for b in range(256)] + [(c * 2).encode() for c in part]
        for bit, pattern in enumerate(CLASSES):
            if pattern:
                enc = encoding(tokens, rf"(?:{pattern}){{2}}|[\s\S]")
                bad += sum((len(enc.encode_ordinary(c * 2)) == 1) != bool(cats[at + i] & 1 << bit)
                           for i, c in enumerate(part))
    print(f"classes of {len(chars)} code points: {bad} differ")
    return bad


# As in the tokenization_kimi.py that comes with the models.
def chunks(text, window=400_000, limit=25_000):
    for at in range(0, len(text), window):
        s = text[at:at + window]
        length, space, start = 0, s[0].isspace(), 0
        for i, c in enumerate(s):
            if c.isspace() != space:
                length, space = 1, c.isspace()
            else:
                length += 1
                if length > limit:
                    yield s[start:i]
                    start, length = i, 1
        yield s[start:]


def reference(enc, text, special):
    allowed = {"allowed_special": "all"} if special else {"disallowed_special": ()}
    return [i for s in chunks(text) for i in enc.encode(s, **allowed)]


def vocabulary(rng, n):
    """Bytes, characters, then n pieces of random strings, each reachable by merging."""
    texts = [t.encode() for t in WORDS + WHITE]
    texts += [random_text(rng, None).encode()[:200] for _ in range(n // 8)]
    tokens = {bytes([b]): None for b in range(256)}
    for run in ((c * 48).encode() for c in "xX 漢1!\n"):
        tokens.update((run[:end], None) for end in range(2, len(run) + 1))
    while len(tokens) < n:
        t = rng.choice(texts)
        at, k = rng.randrange(len(t) + 1), rng.choice([2, 3, 3, 4, 6, 8])
        for end in range(at + 2, min(at + k, len(t)) + 1):
            tokens.setdefault(t[at:end])
        if rng.random() < .01:
            for end in range(2, len(t) + 1):
                tokens.setdefault(t[:end])
    return list(tokens)


LONG = [  # (unit, times) lists: the first characters of a chunk are told by the units
    [["x", 25000]], [["x", 25001]], [["x", 50001]], [[" ", 25003], ["x", 3]], [["漢", 25004]],
    [["x", 24999], [" ", 1], ["x", 25002]], [["x", 13], [" ", 60000], ["Xx", 30000]],
    [["Xx1 ", 100001]], [["x ", 199990], ["X", 25], [" ", 50]], [["\x1c", 25002]],
    [["\u3000 ", 13000]], [["!\n", 25001], ["x", 9]], [["\n", 400007]], [["e\u0301", 13000]],
    [["1", 400005]], [["ab ", 133330], ["X", 40]], [["ab ", 133330], ["漢", 40]],
    [["ab ", 133330], [" ", 40], ["x", 3]],
]


def text_of(parts):
    return "".join(unit * times for unit, times in parts)


class OursKimi(Ours):
    def __init__(self, lib, tokens):
        self.lib, self.tok, self.err = lib, ctypes.c_void_p(), Err()
        text = model(tokens)
        if lib.mc_tok_from_tiktoken(text, ctypes.c_size_t(len(text)), None,
                                    ctypes.byref(self.tok), ctypes.byref(self.err)) < 0:
            raise SystemExit(self.err.text.decode())


def model(tokens):
    return b"".join(base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens))


def write():
    rng = random.Random("vectors")
    tokens = vocabulary(rng, 3000)
    special = {f"<|reserved_token_{len(tokens) + i}|>": len(tokens) + i for i in range(256)}
    enc = encoding(tokens, special=special)
    HERE.mkdir(exist_ok=True)
    (HERE / "tiktoken.model").write_bytes(model(tokens))
    rows = [([[random_text(rng, list(special)[:4]), 1]], rng.random() < .5) for _ in range(400)]
    with open(HERE / "vectors.jsonl", "w", encoding="utf-8") as f:
        for parts, sp in rows:
            ids = reference(enc, text_of(parts), sp) if text_of(parts) else []
            print(json.dumps({"parts": parts, "special": sp, "ids": ids}, ensure_ascii=False), file=f)
        for parts in LONG:
            ids = reference(enc, text_of(parts), False)
            print(json.dumps({"parts": parts, "special": False, "n": len(ids), "fnv": fnv(ids)},
                             ensure_ascii=False), file=f)


def fnv(ids):
    """FNV-1a over the ids, 64 bits, in hexadecimal."""
    h = 0xcbf29ce484222325
    for i in ids:
        h = (h ^ i) * 0x100000001b3 % 2**64
    return f"{h:016x}"


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    rng = random.Random(f"{sys.argv[2] if len(sys.argv) > 2 else 1}")
    lib = library()
    bad = check_classes(lib)
    tokens = vocabulary(rng, 30000)
    special = {f"<|reserved_token_{len(tokens) + i}|>": len(tokens) + i for i in range(256)}
    enc, ours = encoding(tokens, special=special), OursKimi(lib, tokens)
    texts = [random_text(rng, list(special)) for _ in range(count)] + [text_of(p) for p in LONG]
    wrong = 0
    for text in filter(None, texts):
        for sp in (False, True):
            got, want = ours.encode(text, sp), reference(enc, text, sp)
            if got != want:
                wrong += 1
                if wrong <= 5:
                    print(f"  special={sp} {text[:200]!r}\n    {got[:40]}\n    {want[:40]}")
    print(f"{len(texts)} strings twice, {wrong} differ")
    sys.exit(bad + wrong != 0)


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else main()
