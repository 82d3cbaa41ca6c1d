"""The reference, help and what there is agree; each code block of README and of the reference runs;
a directory that `policy init` made is one that luacheck and the server take."""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile

from mascon import MASCON, MODEL, Server, Skip, main

server = None
META = {path: open(path).read() for path in sorted(glob.glob("lua/mc/meta/*.lua"))}


def entries():
    return re.findall(r"^function ([\w.:]+)\(", "".join(META.values()), re.M)


def page():
    return subprocess.run(["luajit", "lua/reference.lua", *META], stdout=subprocess.PIPE,
                          check=True).stdout.decode()


# ---- bindings and entries -----------------------------------------------------------------

def every_function_of_mc_has_an_entry_and_every_entry_its_function():
    status, out = server.attach("""
        local out = {}
        local function walk(t, path, depth)
          for k, v in pairs(t) do
            local name = path .. "." .. k
            if type(v) == "function" then out[#out + 1] = name
            elseif type(v) == "table" and depth < 3 and name ~= "mc.config"
              and v ~= mc.json.null then walk(v, name, depth + 1) end
          end
        end
        walk(mc, "mc", 1)
        return table.concat(out, " ")""")
    assert status == 0, out
    have, said = set(out.split()), {e for e in entries() if e.startswith("mc.")}
    step_only = {"mc.vocab.set"}
    assert have - said == set(), f"no entry in lua/mc/meta: {sorted(have - said)}"
    assert said - have - step_only == set(), f"only in lua/mc/meta: {sorted(said - have)}"


def every_method_of_an_object_has_an_entry():
    # the library's convention: methods are functions of a table with a capital
    kinds = {"Seq": "seq", "Task": "task", "Req": "req", "Res": "res"}
    # no object of scripts' own, or of a step VM: tests/c/test_reference.c holds those
    others = {"Expect", "M", "View", "Plan", "Cands", "Blocks", "Template"}
    said, bound = set(entries()), set()
    for path in glob.glob("lua/mc/*.lua"):
        for table, name in re.findall(r"^function ([A-Z]\w*)[.:](\w+)\(", open(path).read(), re.M):
            if table in others or path.endswith("pick.lua"):
                continue
            kind = kinds.get(table, table.lower())
            assert f"{kind}:{name}" in said, f"{path}: {kind}:{name} has no entry in lua/mc/meta"
            bound.add(f"{kind}:{name}")
    left = [e for e in said - bound if ":" in e and e.split(":")[0] in kinds.values()]
    assert not left, f"only in lua/mc/meta: {left}"


def every_field_of_a_submission_is_one():
    fields = re.search(r"---@class mc.Submit\n((?:---.*\n)*)", META["lua/mc/meta/mc.lua"])
    names = re.findall(r"---@field (\w+)", fields.group(1))
    assert len(names) > 20
    for name in names:
        status, out = server.attach(
            f"local ok, e = pcall(mc.submit, {{ prompt = 'x', limit = 0, {name} = print }}) "
            "return tostring(e)")
        assert "no field" not in out, (name, out)


def help_says_what_the_page_says():
    text = page()
    for name in entries():
        assert f"\n### {name}\n" in text, name
    out = server.attach("help()")[1]
    for name in entries():
        assert f"  {name}\n" in out, name
    out = server.attach('help "mc.shared.take"')[1]
    assert "mc.shared.take(key, n, rate, burst)" in out and "rate number" in out, out


# ---- a starter directory ------------------------------------------------------------------

def a_starter_directory_is_taken_by_everyone():
    with tempfile.TemporaryDirectory() as d:
        d = os.path.join(d, "mine")
        subprocess.run([MASCON, "policy", "init", d], check=True, stdout=subprocess.DEVNULL)
        settings = json.load(open(d + "/.luarc.json"))
        assert settings["runtime.version"] == "LuaJIT"
        assert os.path.exists(os.path.join(d, settings["workspace.library"][0], "mc.lua"))
        p = subprocess.run([MASCON, "policy", "check", d, "--socket", "/nonexistent/sock"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert p.returncode == 0, p.stdout
        again = subprocess.run([MASCON, "policy", "init", d], stdout=subprocess.PIPE)
        assert b"0 files written" in again.stdout, again.stdout
        if shutil.which("luacheck"):
            p = subprocess.run(["luacheck", "-q", "."], cwd=d, stdout=subprocess.PIPE)
            assert p.returncode == 0, p.stdout.decode()
        with Server(policies=d) as mine:
            assert mine.get("/v1/models")[0] == 200


# ---- code blocks --------------------------------------------------------------------------

def blocks(text):
    """(language, lines): fenced ones, and indented ones outside of lists as "text"."""
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        yield language, body
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for body in re.findall(r"(?:^\n)((?:    .*\n)+)", text, re.M):
        yield "text", re.sub(r"^    ", "", body, flags=re.M)


def run_lua(body):
    """A file of a policy is tried as a reload does; anything else is typed."""
    if "api = 1" in body:
        kind = re.search(r'kind = "(\w+)"', body).group(1)
        with tempfile.TemporaryDirectory() as d:
            name = "routes/x" if kind == "routes" else "x"
            os.mkdir(d + "/routes")
            open(f"{d}/{name}.lua", "w").write(body)
            value = '{ "x" }' if kind == "routes" else '"x"'
            open(d + "/init.lua", "w").write(f"return {{ {kind} = {value} }}")
            p = subprocess.run([MASCON, "policy", "check", d, "--socket", server.socket],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert p.returncode == 0, (body, p.stdout.decode())
        return
    status, out = server.attach(body)
    assert status == 0, (body, out)


def run_command(line, cwd):
    """One line of a shell block: our program is run, make's targets are looked up."""
    words = shlex.split(line.split("  # ")[0])
    if words[0] == "make":
        goals = [w for w in words[1:] if "=" not in w] or ["all"]
        rules = open("GNUmakefile").read()
        assert all(re.search(rf"^{g}:", rules, re.M) for g in goals), line
        return
    if words[0] == "cp":
        assert os.path.exists(words[-2]), line
        return
    line = line.split("  # ")[0].replace("MODEL", os.path.abspath(MODEL))
    line = line.replace("build/mascon", os.path.abspath(MASCON))
    line = line.replace("localhost:8000", f"localhost:{server.port}")
    if words[0].endswith("mascon") and words[1] == "serve":
        help = subprocess.run([MASCON, "serve", "--help"], stdout=subprocess.PIPE).stdout.decode()
        assert all(w in help for w in words if w.startswith("--")), line
        return
    if words[0].endswith("mascon") and words[1] in ("attach", "policy", "why", "top"):
        line += " --socket " + shlex.quote(server.socket)
    p = subprocess.run(["bash", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, timeout=120, cwd=cwd)
    assert p.returncode == 0, (line, p.stdout.decode()[-2000:])


def run_text(body):
    joined = re.sub(r"\\\n\s*", "", body)
    for line in joined.splitlines():
        first = line.split()[0] if line.split() else ""
        if first in ("make", "cp", "curl") or first.endswith("mascon"):
            run_command(line, os.getcwd())
        elif re.match(r"(core|kernels|lua|policies|tests|examples|dist)/", first):
            assert os.path.exists(first), f"README names {first}"
        else:
            assert re.match(r"[\w.:]+\(", line), f"what is to be done with {line!r}?"


def every_code_block_of_the_readme_runs():
    n = 0
    for language, body in blocks(open("README.md").read()):
        run_lua(body) if language == "lua" else run_text(body)
        n += 1
    assert n >= 4


def every_code_block_of_the_reference_runs():
    n = 0
    for language, body in blocks(page()):
        if language == "lua":
            run_lua(body)
            n += 1
        else:  # a signature: an entry's name
            assert re.match(r"[\w.:]+\(", body) and body.split("(")[0] in entries(), body
    assert n >= 8, n


if __name__ == "__main__":
    with Server() as server:
        main([every_function_of_mc_has_an_entry_and_every_entry_its_function,
              every_method_of_an_object_has_an_entry,
              every_field_of_a_submission_is_one,
              help_says_what_the_page_says,
              a_starter_directory_is_taken_by_everyone,
              every_code_block_of_the_readme_runs,
              every_code_block_of_the_reference_runs])
