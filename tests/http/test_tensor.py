"""mc.tensor: arithmetic beside plain Python, what every misuse says, quota, scopes, the collector."""
import base64
import json
import re
import struct
import subprocess
import threading
import time

from mascon import MASCON, Server, main

server = None


def lua(text, timeout=120):
    """What a chunk returns, as `mascon attach -e` prints it; raises on an error."""
    p = subprocess.run([MASCON, "attach", "--socket", server.socket, "-e", text],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
    out = p.stdout.decode().strip()
    if p.returncode:
        raise RuntimeError(out + p.stderr.decode())
    return out


def fails(text, message):
    try:
        got = lua(text)
    except RuntimeError as e:
        got = str(e)
    assert re.search(message, got), (text, got)
    assert "stack traceback" not in got, got


def numbers(text):
    return [float(x) for x in re.findall(r"-?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?)", lua(text))]


def arithmetic_is_plain_arithmetic():
    head = "local T = mc.tensor; local a = T.from {{1,2,3},{4,5,6}}; local b = T.from {10,20,30}; "
    assert numbers(head + "return (a + b):table()") == [11, 22, 33, 14, 25, 36]
    assert numbers(head + "return (b - a):table()") == [9, 18, 27, 6, 15, 24]
    assert numbers(head + "return (a * 2 - 1):table()") == [1, 3, 5, 7, 9, 11]
    assert numbers(head + "return (60 / a):table()") == [60, 30, 20, 15, 12, 10]
    assert numbers(head + "return (2 - b):table()") == [-8, -18, -28]
    assert numbers(head + "return (-a):table()") == [-1, -2, -3, -4, -5, -6]
    assert numbers(head + "return a:matmul(a:transpose()):table()") == [14, 32, 32, 77]
    assert numbers(head + "return b:matmul(a:transpose()):table()") == [140, 320]
    assert numbers(head + "return a:sum():table()") == [6, 15]
    assert numbers(head + "return a:mean():table()") == [2, 5]
    assert numbers(head + "return a:max():table()") == [3, 6]
    assert numbers(head + "return T.from {{3, 4}, {6, 8}}:norm():table()") == [5, 10]
    assert numbers(head + "return T.from {0, 0, 0, 0}:softmax():table()") == [0.25] * 4
    assert numbers(head + "local v, i = a:topk(2); return {v:table(), i:table()}") == [
        3, 2, 6, 5, 2, 1, 2, 1]


def views_and_types():
    head = "local a = mc.tensor.from({{1,2,3},{4,5,6},{7,8,9}}, 'bf16'); "
    assert numbers(head + "return a:row(-1):table()") == [7, 8, 9]
    assert numbers(head + "return a:slice(2, 3):slice(1, 2, 2):table()") == [4, 5, 7, 8]
    assert numbers(head + "return a:slice(-2):transpose():table()") == [4, 7, 5, 8, 6, 9]
    assert numbers(head + "return a:get(2, 3)") == [6]
    assert numbers(head + "return a:shape()") == [3, 3]
    assert lua(head + "return a.dtype .. a.bytes .. a:cast('f32').dtype") == "bf1618f32"
    assert lua(head + "return tostring(a)") == "tensor bf16 [3, 3], 18 bytes"
    assert numbers("return mc.tensor.from({1.005}, 'bf16'):get(1)") == [1.0078125]
    assert numbers("return mc.tensor.from(7):get()") == [7]
    assert lua("local a = mc.tensor.from{1,2}; local r = a:row(2); a:close(); "
               "return r:get()") == "2"  # a view keeps what it shows


def misuse_is_an_error_that_says_what():
    head = "local T = mc.tensor; local a = T.from {{1,2,3},{4,5,6}}; "
    for text, message in [
            ("return a + T.from {1, 2}", r"\+ of f32 \[2, 3\] and f32 \[2\]: the shapes don't meet"),
            ("return a:matmul(a)", r"matmul of f32 \[2, 3\] and f32 \[2, 3\]: the columns"),
            ("return a:matmul(T.from {1})", "the second is no matrix"),
            ("return a:topk(4)", "k is 1 to 1024"),
            ("return a:topk(0/0)", "k is 1 to 1024"),
            ("return a:cast('f64')", "a type is"),
            ("return a:cast('i32') + 1", "type is not f32"),
            ("return T.zeros('f8', {2})", "a type is"),
            ("return T.zeros('f32', {2, 0})", "whole numbers from 1"),
            ("return T.zeros('f32', {1, 2, 3, 4, 5})", "up to 4"),
            ("return T.zeros('f32', {1.5})", "whole numbers"),
            ("return T.zeros('f32', {2^31})", "whole numbers"),
            ("return T.zeros('f32', {2^30, 2^30})", "2\\^40"),
            ("return T.zeros('f32', {2^30, 2^14, 2^20})", "2\\^40"),
            ("return T.zeros('f32', {2^31 - 1, 2^10, 2^30})", "2\\^40"),
            ("return T.zeros('f32', {'x'})", "whole numbers"),
            ("return T.from {{1, 2}, {3}}", "not even"),
            ("return T.from {1, 'x'}", "not a number"),
            ("return T.from {}", "empty"),
            ("return T.from 'x'", "table expected"),
            ("return a:row(3)", "index counts from 1"),
            ("return a:row(0)", "index counts from 1"),
            ("return a:row(0/0)", "index counts from 1"),
            ("return a:row(1.5)", "index counts from 1"),
            ("return a:row()", "number expected"),
            ("return a:slice(2, 1)", "ends before"),
            ("return a:slice(1, 2, 3)", "no such axis"),
            ("return a:get(1)", "an index for each axis"),
            ("return T.from(1):sum()", "no axis"),
            ("return T.from(1):transpose()", "no two axes"),
            ("return T.zeros('f32', {2^20 + 1}):table()", "more than 1,048,576"),
            ("a:close(); return a:sum()", "the tensor is closed"),
            ("a:close(); return a + 1", "the tensor is closed"),
            ("a:close(); a:close(); return tostring(a)", r"tensor \(closed\)"),
            ("return a.row(7, 1)", "mc.tensor expected"),
            ("return a.x", "nil"),
            ("a.x = 1", "attempt to index|__newindex"),
            ("return a < a", "attempt to compare")]:
        fails(head + text, message)


def a_large_tensor_is_the_pools_and_not_luas():
    used = "collectgarbage('count') * 1024, mc.tensor.stats().used"
    before = "local l0, u0 = %s; local t = mc.tensor.zeros('bf16', {8192, 8192}); " % used
    lua_bytes, pool = numbers(before + "local l1, u1 = %s; t:close(); return {l1 - l0, u1 - u0}"
                              % used)
    assert pool == 128 << 20, pool
    assert lua_bytes < 1024, lua_bytes
    assert numbers("return mc.tensor.stats().used") == [0]


def what_is_dropped_comes_back():
    got = numbers("""local T = mc.tensor
      local most = 0
      for i = 1, 1e6 do
        local t = T.zeros("f32", {256})
        if i % 1000 == 0 then most = math.max(most, T.stats().mine) end
      end
      return {most, T.stats().quota}""")
    assert got[0] <= 4096 * 1024 and got[1] == 256 << 20, got
    # work in a loop: what is queued is bounded, what it made is collected
    got = numbers("""local T = mc.tensor
      local a, most = T.zeros("f32", {1024, 1024}), 0
      for i = 1, 500 do a = a + 1; most = math.max(most, T.stats().mine) end
      return {a:get(1024, 1024), most}""")
    assert got[0] == 500 and got[1] <= 256 << 20, got
    fails("""local T, keep = mc.tensor, {}
      while true do
        local t, err = T.zeros("f32", {1024, 1024})
        if not t then return err.code .. ": " .. err.message end
        keep[#keep + 1] = t
      end""", "rate_limit_exceeded: .*scripts hold 256.0 of the 256.0 MiB")
    fails("""local keep = {}
      for i = 1, 5000 do keep[i] = mc.tensor.from(1) end""", "more than 4096 tasks")
    time.sleep(0.2)


def stored(path, name):
    """(shape, values) of a bf16 tensor in a safetensors file."""
    with open(path + "/model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        t = json.loads(f.read(n))[name]
        f.seek(8 + n + t["data_offsets"][0])
        data = f.read(t["data_offsets"][1] - t["data_offsets"][0])
    assert t["dtype"] == "BF16", t
    return t["shape"], [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0]
                        for i in range(0, len(data), 2)]


def a_named_weight_is_what_the_file_holds():
    plain = "tests/models/tiny-llama"
    for name, rows in (("model.embed_tokens.weight", (1000, 1050)), # read in two blocks
                       ("model.embed_tokens.weight", (1, 5)), ("model.norm.weight", (1, 256)),
                       ("model.layers.0.mlp.down_proj.weight", (200, 256))):
        shape, want = stored(plain, name)
        before = lua("mc.tensor.stats().used")
        text, data = lua(f"local w = assert(mc.tensor.weight(nil, '{name}')) return tostring(w), "
                         f"w:slice({rows[0]}, {rows[1]}):base64()").split("   ")
        assert text.startswith(f"tensor bf16 {shape}"), text
        k = len(want) // shape[0]
        want = want[(rows[0] - 1) * k:rows[1] * k]
        assert list(struct.unpack(f"<{len(want)}f", base64.b64decode(data))) == want, (name, rows)
        assert lua("mc.tensor.stats().used") == before
    fails("mc.tensor.weight(nil, 'model.nrm.weight')",
          r"no tensor model\.nrm\.weight \(it has model\.norm\.weight\)")
    fails("mc.tensor.weight('other', 'model.norm.weight')", "'other' does not exist")
    fails("mc.tensor.weight('model.norm.weight')", "takes a model's id")
    fails("mc.tensor.weight(nil, ('x'):rep(200))", "up to 127 bytes")
    fails("local w = mc.tensor.weight(nil, 'model.norm.weight') w:close() return w:row(1)",
          "is closed")


def a_packed_weight_is_unpacked():
    """The same model in other forms: near what it was made of, and a captured row of the embedding
    is a row of the weight."""
    name = "model.layers.1.mlp.gate_proj.weight"
    shape, want = stored("tests/models/tiny-llama", name)
    scale = max(map(abs, want))
    global server
    was = server
    for model, off in (("tiny-llama-fp8", 0.07), ("tiny-llama-w4a16", 0.15),
                       ("tiny-llama-gguf/tiny-llama-q8_0.gguf", 0.01)):
        with Server(model="tests/models/" + model) as server:
            text, data = lua(f"local w = assert(mc.tensor.weight(nil, '{name}')) "
                             "return tostring(w), w:base64()").split("   ")
            assert text.startswith(f"tensor f32 {shape}"), (model, text)
            have = struct.unpack(f"<{len(want)}f", base64.b64decode(data))
            worst = max(abs(a - b) for a, b in zip(have, want)) / scale
            assert 0 < worst < off, (model, worst)
            assert float(lua("""
                local s = assert(mc.submit { prompt = { 5, 9 }, limit = 0,
                                             capture = { hidden = 0 } })
                local rows = s:wait().hidden[0]
                local w = assert(mc.tensor.weight(nil, "model.embed_tokens.weight"))
                return (rows:row(2):cast "f32" - w:row(10):cast "f32"):norm():get()
            """)) == 0, model
    server = was


def a_scope_ends_and_its_tensors_with_it():
    for _ in range(100):  # the last session ends while the next begins
        if numbers("return mc.tensor.stats().used") == [0]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("a session's end does not give all back")
    assert "made at stdin:1, was not closed" in wait_for_log(
        "T9 = mc.tensor.zeros('bf16', {1024, 1024}) return 1")


def wait_for_log(text):
    lua(text)
    for _ in range(100):
        if "not closed" in server.log():
            break
        time.sleep(0.05)
    return server.log()


def work_does_not_hold_up_streams():
    """A long product on the pool's stream beside a generation: both end, and in the meantime the
    session answers."""
    done = []

    def work():
        done.append(lua("local a = mc.tensor.zeros('f32', {700, 700}); "
                        "for i = 1, 8 do a = a:matmul(a) end; return a:get(1, 1)"))

    t = threading.Thread(target=work)
    t.start()
    status, body = server.post("/v1/completions", {"prompt": "a", "max_tokens": 40,
                                                   "ignore_eos": True})
    t.join()
    assert status == 200 and done == ["0"], (status, body, done)


if __name__ == "__main__":
    with Server("--log", "lua=info") as server:
        main([arithmetic_is_plain_arithmetic, views_and_types, misuse_is_an_error_that_says_what,
              a_large_tensor_is_the_pools_and_not_luas, what_is_dropped_comes_back,
              a_named_weight_is_what_the_file_holds, a_packed_weight_is_unpacked,
              a_scope_ends_and_its_tensors_with_it, work_does_not_hold_up_streams])
