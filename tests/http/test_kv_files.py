"""Contexts that scripts keep: snapshots, saving, loading into another server; files that lie."""
import os
import random
import shutil
import tempfile

from mascon import SANITIZED, Server, main

DIR = tempfile.mkdtemp(prefix="mascon-kv-")
FLAGS = ("--kv-dir", DIR)
IDS = "local ids = {} for i = 1, 300 do ids[i] = (i * 7) % 1500 end; "
ASK = ("local r = assert(mc.submit { from = k, prompt = ' and so', limit = 12, temperature = 0,"
       " ignore_eos = true }:wait()); return r.text .. '|' .. r.usage.cached")


KEEP = """local function keep(p)
  local s = assert(mc.submit { prompt = p, limit = 0 })
  assert(s:wait())
  return s:snapshot()
end """


def lua(server, text):
    status, out = server.attach(KEEP + text)
    assert status == 0, out
    return out.strip()


def what_is_saved_is_there_in_another_server():
    with Server(*FLAGS) as one:
        said = lua(one, IDS + "local k = assert(keep(ids)); "
                   "assert(k:save 'a.kv'); assert(k:tokens() == 256); " + ASK)
        assert said.endswith("|256"), said
        assert one.metric("mascon_kv_pages_held") == 0 or not one.idle()
    size = os.path.getsize(DIR + "/a.kv")
    assert oct(os.stat(DIR + "/a.kv").st_mode)[-3:] == "600"
    with Server(*FLAGS) as other:
        before = other.metric("mascon_prompt_tokens_total")
        got = lua(other, "local k = assert(mc.kv.load 'a.kv'); "
                  "assert(k:tokens() == 256 and k:bytes() < %d); " % size + ASK)
        assert got == said, (got, said)
        assert other.metric("mascon_prompt_tokens_total") - before < 64
        assert other.metric("mascon_page_tag_mismatch_total") == 0
        other.idle()
    with Server(*FLAGS, "--ranks", "2") as ranks:
        out = lua(ranks, "local k, err = mc.kv.load 'a.kv'; return tostring(err)")
        assert "--ranks" in out or "another model" in out, out
        said2 = lua(ranks, IDS + "local k = assert(keep(ids)); "
                    "assert(k:save 'b.kv'); k:drop(); local k = assert(mc.kv.load 'b.kv'); " + ASK)
        assert said2 == said, (said2, said)
    with Server(*FLAGS, "--kv", "f32") as f32:
        out = lua(f32, "local k, err = mc.kv.load 'a.kv'; return tostring(err)")
        assert "--kv" in out, out


def a_snapshot_holds_its_pages_until_it_is_dropped():
    with Server(*FLAGS, "--kv-memory", "2M", "--max-context", "2048") as s:
        total = int(lua(s, "return mc.kv.stats().total"))
        out = lua(s, IDS + """local s = assert(mc.submit { tokens = ids, limit = 0 })
          s:wait()
          local k = assert(s:snapshot())
          local held = mc.kv.stats().held
          for n = 1, 3 do -- others come and go, more than the pool
            local more = {}
            for i = 1, mc.kv.stats().total * 40 do more[i] = (i * n) % 1499 end
            mc.submit { tokens = more, limit = 0 }:wait()
          end
          local r = mc.submit { from = k, prompt = "x", limit = 1 }:wait()
          k:drop()
          return held .. " " .. r.usage.cached .. " " .. mc.kv.stats().held""")
        assert out == "4 256 0", (out, total)
        out = lua(s, """local all = {}
          for n = 1, 99 do
            local ids = {}
            for i = 1, 128 do ids[i] = (i * n + n) % 1500 end
            local k, err = keep(ids)
            if not k then return #all .. " " .. tostring(err) end
            all[n] = k
          end""")
        assert f"{total // 4 // 2} contexts that are kept" in out, (out, total)
        s.idle()


def misuse_says_what():
    with Server() as s:
        assert "--kv-dir is not set" in lua(
            s, IDS + "local k = keep(ids); return tostring(select(2, k:save 'x'))")
    with Server(*FLAGS) as s:
        head = IDS + "local k = assert(keep(ids)); "
        for name in ["../x", ".x", "a/b", "", "x" * 101, "a\\0b", "a b"]:
            out = lua(s, head + f"return tostring(select(2, k:save '{name}'))")
            assert "a context's name is" in out, (name, out)
        assert "No such file" in lua(s, "return tostring(select(2, mc.kv.load 'none'))")
        os.symlink("/etc/passwd", DIR + "/link")
        assert "symbolic link" in lua(s, "return tostring(select(2, mc.kv.load 'link'))")
        os.mkdir(DIR + "/dir")
        assert "is no file" in lua(s, "return tostring(select(2, mc.kv.load 'dir'))")
        for text in ["k:drop(); return k:tokens()", "k:drop(); k:drop(); return k:save 'x'",
                     "return k.save(7, 'x')", "return mc.submit { from = 7 }",
                     "return k:save()"]:
            status, out = s.attach(KEEP + head + text)
            assert status == 1 and "traceback" not in out, (text, out)
        out = lua(s, "local k = assert(keep 'x'); "
                     "return k:tokens() .. tostring(select(2, k:save 'x'))")
        assert out.startswith("0a context without a whole page"), out
        s.idle()


def damaged_files_are_refused():
    good = open(DIR + "/a.kv", "rb").read()
    rnd = random.Random(7)
    with Server(*FLAGS) as s:
        before = lua(s, "return mc.submit { prompt = 'Once', limit = 8, temperature = 0 }:wait().text")
        for i in range(10 if SANITIZED else 40):
            data = bytearray(good)
            if i % 4 == 0:
                data = data[:rnd.randrange(len(data))]
            elif i % 4 == 1:
                data += bytes(rnd.randrange(1, 99))
            else:  # the header and the ids more often than the pages
                at = rnd.randrange(56 if i % 4 == 2 else len(data))
                data[at] ^= 1 << rnd.randrange(8)
            with open(DIR + "/bad.kv", "wb") as f:
                f.write(data)
            out = lua(s, "local k, err = mc.kv.load 'bad.kv'; assert(not k); return err.code")
            assert out in ("invalid_format", "rate_limit_exceeded"), (i, out)
        assert lua(s, "return mc.submit { prompt = 'Once', limit = 8, temperature = 0 }"
                      ":wait().text") == before
        s.idle()


if __name__ == "__main__":
    try:
        main([what_is_saved_is_there_in_another_server,
              a_snapshot_holds_its_pages_until_it_is_dropped, misuse_says_what,
              damaged_files_are_refused])
    finally:
        shutil.rmtree(DIR, ignore_errors=True)
