"""Policies edited while eight streams run: what is saved is live in a second, what is broken is
refused or replaced, and no token is lost."""
import os
import shutil
import tempfile
import time

from mascon import Server, at_once, ids_of, main

STREAMS, TOKENS = 8, 400
PROMPT = "To be, or not to be"


class Policies:
    """A copy of policies/ that a test may spoil."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="mascon-policies-")
        shutil.copytree("policies", os.path.join(self.dir, "p"))
        self.path = os.path.join(self.dir, "p")
        self.text = open(os.path.join(self.path, "scheduler.lua")).read()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir)

    def rename_scheduler(self, name):
        """Gives the scheduler another name, in init.lua too; its path."""
        path = os.path.join(self.path, name + ".lua")
        shutil.copy(os.path.join(self.path, "scheduler.lua"), path)
        init = os.path.join(self.path, "init.lua")
        text = open(init).read().replace('scheduler = "scheduler"', f'scheduler = "{name}"')
        with open(init, "w") as f:
            f.write(text)
        return path

    def save(self, text):
        """As editors do: a new file renamed over the old one."""
        new = os.path.join(self.path, ".scheduler.lua.new")
        with open(new, "w") as f:
            f.write(text)
        os.rename(new, os.path.join(self.path, "scheduler.lua"))


def generation(server):
    return int(server.metric("mascon_policy_generation"))


def body(i, tokens=TOKENS):
    return {"model": "default", "prompt": f"{i} {PROMPT}", "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def solo(server):
    return [ids_of(server.stream("/v1/completions", body(i))) for i in range(STREAMS)]


def while_streaming(server, edit):
    """Eight streams; edit() runs once all of them have begun. Their ids."""
    began = [False] * STREAMS

    def mark(i):
        def on_event(_):
            began[i] = True
        return on_event

    def editor():
        until = time.monotonic() + 30
        while not all(began) and time.monotonic() < until:
            time.sleep(0.005)
        return edit()

    jobs = [lambda i=i: ids_of(server.stream("/v1/completions", body(i), mark(i)))
            for i in range(STREAMS)]
    got = at_once(jobs + [editor])
    return got[:STREAMS], got[STREAMS]


def wait_for(what, seconds):
    t0 = time.monotonic()
    while not what():
        if time.monotonic() - t0 > seconds:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.01)
    return time.monotonic() - t0


def a_saved_scheduler_is_live_within_a_second_and_no_token_is_lost():
    with Policies() as p, Server(policies=p.path) as s:
        want, before = solo(s), generation(s)

        def edit():
            p.save("-- edited\n" + p.text)
            return wait_for(lambda: generation(s) > before, 5)

        got, took = while_streaming(s, edit)
        assert got == want
        assert took < 1, took
        s.idle()


def a_syntax_error_leaves_the_old_one_and_names_file_and_line():
    with Policies() as p, Server(policies=p.path) as s:
        want, before = solo(s), generation(s)

        def edit():
            p.save(p.text + "\nlocal = 1\n")
            wait_for(lambda: "scheduler.lua:" in s.log(), 5)

        got, _ = while_streaming(s, edit)
        assert got == want and generation(s) == before
        line = p.text.count("\n") + 2
        assert f"scheduler.lua:{line}" in s.log(), s.log()
        for say in ("mc.engine.status().policy_error", "mc.policy.list().error"):
            wait_for(lambda: f"scheduler.lua:{line}" in s.attach(say)[1], 5)
        p.save(p.text)
        wait_for(lambda: s.attach("mc.engine.status().policy_error")[1] == "nil\n", 5)


def files_that_are_taken_away_are_told():
    with Policies() as p, Server(policies=p.path) as s:
        before = generation(s)
        for name in ("init.lua", "scheduler.lua"):
            path = os.path.join(p.path, name)
            if name == "scheduler.lua":  # not one that the built-in set has, too
                path = p.rename_scheduler("mine")
                wait_for(lambda: generation(s) > before, 5)
                before = generation(s)
            os.rename(path, path + ".away")
            said = lambda: s.attach("mc.engine.status().policy_error")[1]
            wait_for(lambda: os.path.basename(path) in said(), 5)
            told = [x for x in s.log().splitlines() if "error policy" in x]
            assert os.path.basename(path) in told[-1], s.log()
            assert generation(s) == before and s.post("/v1/completions", body(0, 4))[0] == 200
            os.rename(path + ".away", path)
            wait_for(lambda: said() == "nil\n", 5)
            before = generation(s)


def an_error_at_run_time_costs_no_request_and_is_rolled_back():
    with Policies() as p, Server(policies=p.path) as s:
        want, before = solo(s), generation(s)
        # only rows far into their answers make it fail: no dry run has those
        bad = p.text.replace("function P.plan(view, plan)",
                             "function P.plan(view, plan)\n"
                             "  for _, row in view:running() do\n"
                             "    if row.n_gen > 150 then error('on purpose') end\n"
                             "  end", 1)

        p.save(bad)
        wait_for(lambda: generation(s) > before, 10)
        got, _ = while_streaming(s, lambda: None)
        assert "on purpose" in s.log(), s.log()
        assert got == want
        wait_for(lambda: generation(s) == before, 5)
        assert s.get("/health")[0] == 200


def an_endless_loop_does_not_stop_the_streams():
    with Policies() as p, Server(policies=p.path) as s:
        want = solo(s)
        bad = p.text.replace("function P.plan(view, plan)",
                             "function P.plan(view, plan)\n"
                             "  for _, row in view:running() do\n"
                             "    while row.n_gen > 150 do end\n"
                             "  end", 1)
        before = generation(s)
        p.save(bad)
        wait_for(lambda: generation(s) > before, 10)
        got, _ = while_streaming(s, lambda: None)
        wait_for(lambda: "scheduler.lua:" in s.log(), 10)
        assert got == want
        assert s.get("/health")[0] == 200
        s.idle()


def an_empty_plan_is_obeyed_and_nothing_runs():
    with Policies() as p, Server(policies=p.path) as s:
        before = generation(s)
        p.save('return { api = 1, kind = "scheduler", plan = function() end }')
        wait_for(lambda: generation(s) > before, 5)
        steps = s.metric("mascon_steps_total")
        job = []

        def ask():
            job.append(s.post("/v1/completions", body(0, 4)))

        def restore():
            time.sleep(0.5)
            assert s.metric("mascon_steps_total") == steps
            assert s.metric("mascon_idle_by_policy_total") > 0
            assert s.get("/health")[0] == 200
            p.save(p.text)

        at_once([ask, restore])
        assert job[0][0] == 200 and job[0][1]["usage"]["completion_tokens"] == 4


main([a_saved_scheduler_is_live_within_a_second_and_no_token_is_lost,
      a_syntax_error_leaves_the_old_one_and_names_file_and_line,
      files_that_are_taken_away_are_told,
      an_error_at_run_time_costs_no_request_and_is_rolled_back,
      an_endless_loop_does_not_stop_the_streams,
      an_empty_plan_is_obeyed_and_nothing_runs])
