#!/usr/bin/env python3
"""Compare the tokenizer with PyPI's tokenizers; run by hand, from the repository root.

    python3 tests/golden/tokenizer_parity.py [strings a tokenizer, 20000] [seed, 1]

First every code point's class, then random strings through the tokenizers of tests/models
and through variants of them: other pre-tokenizers, added tokens with every flag. Needs
tokenizers (0.23.3 was used); compiles the tokenizer to build/parity.so for itself.
"""
import ctypes, glob, json, random, subprocess, sys, unicodedata

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

SO = "build/parity.so"
SOURCES = glob.glob("core/base/*.c") + [
    s for s in glob.glob("core/model/*.c")
    if s.split("/")[2].startswith(("ucat", "nfc", "pretok", "tokenizer"))
    and not s.endswith(("_open.c", "_gguf.c"))]


class Ids(ctypes.Structure):
    _fields_ = [("v", ctypes.POINTER(ctypes.c_int32)), ("n", ctypes.c_size_t),
                ("cap", ctypes.c_size_t)]


class Err(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("line", ctypes.c_int), ("file", ctypes.c_char_p),
                ("param", ctypes.c_char * 64), ("text", ctypes.c_char * 240)]


def library():
    subprocess.run(["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-I.", "-o", SO,
                    *SOURCES, "-ljansson", "-lutf8proc", "-lxxhash", "-lm"], check=True)
    return ctypes.CDLL("./" + SO)


class Ours:
    def __init__(self, lib, spec):
        self.lib, self.tok, self.err = lib, ctypes.c_void_p(), Err()
        text = json.dumps(spec).encode()
        if lib.mc_tok_from_json(text, ctypes.c_size_t(len(text)), None,
                                ctypes.byref(self.tok), ctypes.byref(self.err)) < 0:
            raise SystemExit(self.err.text.decode())

    def encode(self, text, special):
        raw, ids = text.encode(), Ids()
        rc = self.lib.mc_tok_encode(self.tok, raw, ctypes.c_size_t(len(raw)),
                                    1 if special else 0, ctypes.byref(ids),
                                    ctypes.byref(self.err))
        if rc < 0:
            return self.err.text.decode()
        out = ids.v[:ids.n]
        self.lib.mc_ids_free(ctypes.byref(ids))
        return out


def check_classes(lib):
    chars = [chr(c) for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    table = (ctypes.c_uint16 * 128).in_dll(lib, "mc_ucat_ascii")
    ours = {c: table[ord(c)] if ord(c) < 128 else lib.mc_ucat_wide(ord(c)) for c in chars}
    bad = 0
    for bit, pattern in enumerate([r"\p{L}", r"\p{N}", r"\p{M}", r"\p{P}", r"\p{S}",
                                   None, r"\s", r"[\r\n]"]):
        if pattern is None:
            continue
        cut = pre_tokenizers.Split(Regex(pattern + "+"), "removed")
        rest = set("".join(p for p, _ in cut.pre_tokenize_str("".join(chars))))
        bad += sum((c not in rest) != bool(ours[c] & 1 << bit) for c in chars)
    print(f"classes of {len(chars)} code points: {bad} differ")
    return bad


WHITE = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u0085", "\u2028", "\x0b"]
WORDS = ("the The THE don't DON'T we'll o'clock it's 'S x's 'ſ 'Re 12 1234567 ٣٤ ½ Ⅳ foo_bar "
         "getHTTPCode -- ... !? <|> </s> #include {}; 漢字 かな カナ 한국어 привет naïve Ä "
         "e\u0301 \u0301\u0323 \u0323\u0301 Å \u1100\u1161\u11a8 नमस्ते สวัสดี 😀 👍🏽 👨‍👩‍👧 \u200b \ufeff \x00 "
         "\x1b[0m ` ~ $ + = ^ |").split(" ")
RANGES = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x5ff),
          (0x900, 0xdff), (0x2000, 0x2bff), (0x3000, 0x30ff), (0x4e00, 0x9fff),
          (0xac00, 0xd7a3), (0xf900, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x323af),
          (0, 0x1f)]


UNICODE17 = {*range(0x11de0, 0x11dea), *range(0x16ff4, 0x16ff7)}  # numbers for Digits only


def random_text(rng, names):
    out = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30, 60])):
        kind = rng.randrange(10)
        if kind < 3:
            out.append(rng.choice(WORDS))
        elif kind < 5:
            out.append(rng.choice(WHITE) * rng.choice([1, 1, 1, 2, 3, 7]))
        elif kind < 8:
            lo, hi = rng.choice(RANGES)
            out += [chr(rng.randint(lo, hi)) for _ in range(rng.randint(1, 6))]
        elif kind < 9:
            out.append(chr(rng.randint(*rng.choice(RANGES))) * rng.randint(1, 90))
        elif names:
            name = rng.choice(names)
            out.append(name if rng.random() < .8 else name[:rng.randint(0, len(name))])
    return "".join(c for c in "".join(out)
                   if not 0xd800 <= ord(c) < 0xe000 and ord(c) not in UNICODE17)


def without_added(spec):
    return spec | {"added_tokens": []}


def variants():
    """(name, tokenizer.json) pairs."""
    spec = {}
    for path in sorted(glob.glob("tests/models/*/tokenizer.json")):
        spec[path.split("/")[2]] = json.load(open(path))
    yield from spec.items()
    llama, qwen = spec["tiny-llama"], spec["tiny-qwen3-moe"]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": False}

    def cut(*patterns):
        return {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated",
             "invert": False} for p in patterns] + [last]}

    words = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|""" "[^\r\n"
             r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+" "[\r\n]*|\\s*[\r\n]+"
             r"|\s+(?!\S)|\s+")
    yield "deepseek-v3", llama | {"pre_tokenizer": cut(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                                                       words)}
    coder = cut("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")
    coder["pretokenizers"].insert(4, {"type": "Digits", "individual_digits": True})
    yield "deepseek-coder", llama | {"pre_tokenizer": coder}
    yield "gpt-2", llama | {"pre_tokenizer": last | {"use_regex": True}}
    for each in (True, False):
        yield f"digits {each}", llama | {"pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": each}, last | {"use_regex": True}]}}
    flags, known = [], qwen["model"]["vocab"]
    free = len(known) + len(qwen["added_tokens"])
    for i, content in enumerate(["<a>", "<ab>", "ab", "e\u0301x", "the", "-- ", "<b>", "<|c|>"]):
        for special in (False, True):
            content += "+" * special
            flags.append({"id": known.get(content, free), "content": content,
                          "special": special, "normalized": i % 3 == 0,
                          "single_word": i % 4 in (1, 2), "lstrip": i % 2 == 1,
                          "rstrip": i % 5 in (0, 3)})
            free += content not in known
    yield "flags", qwen | {"added_tokens": qwen["added_tokens"] + flags}
    vocab = {"一" * v if k in "eĠé" else k: v for k, v in llama["model"]["vocab"].items()}
    merges = [m for m in llama["model"]["merges"]
              if all(x in vocab for x in (*m, "".join(m)))]
    for fuse in (False, True):
        for unk in (None, "a"):
            model = llama["model"] | {"vocab": vocab, "merges": merges, "unk_token": unk,
                                      "fuse_unk": fuse}
            yield f"holes fuse={fuse} unk={unk}", llama | {"model": model}


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    lib = library()
    nfc = normalizers.NFC().normalize_str  # Unicode 9's: texts where that shows are left out
    total = check_classes(lib)
    for name, spec in variants():
        rng = random.Random(f"{seed} {name}")
        names = [a["content"] for a in spec["added_tokens"]]
        ours = Ours(lib, spec)
        theirs = Tokenizer.from_str(json.dumps(spec))
        plain = Tokenizer.from_str(json.dumps(without_added(spec) | {"post_processor": None}))
        bad = old = 0
        for _ in range(count):
            text = random_text(rng, names)
            if spec["normalizer"] and nfc(text) != unicodedata.normalize("NFC", text):
                old += 1
                continue
            for special, ref in ((True, theirs), (False, plain)):
                want = ref.encode(text, add_special_tokens=False).ids
                got = ours.encode(text, special)
                if got != want:
                    bad += 1
                    if bad <= 3:
                        print(f"  {name} special={special} {text!r}\n    {got}\n    {want}")
        print(f"{name}: {count} strings twice, {bad} differ, {old} left out")
        total += bad
    sys.exit(total != 0)


if __name__ == "__main__":
    main()
