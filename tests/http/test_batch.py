"""Eight concurrent streams batch in one pass, and each gets the tokens of its solo run."""
from mascon import Server, at_once, ids_of, main


def body(i, tokens):
    return {"model": "default", "prompt": f"Chapter {i}. It was", "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def bytes_a_step(server, n):
    """Weight bytes a step while n streams decode together."""
    steps, read = server.metric("mascon_steps_total"), server.metric(
        "mascon_weight_bytes_read_total")
    at_once([lambda i=i: server.stream("/v1/completions", body(i, 120)) for i in range(n)])
    return ((server.metric("mascon_weight_bytes_read_total") - read) /
            (server.metric("mascon_steps_total") - steps))


def weights_are_read_once_a_step_at_batch_1_4_and_8():
    with Server() as s:
        got = [bytes_a_step(s, n) for n in (1, 4, 8)]
        assert got[0] > 1e6 and got[0] == got[1] == got[2], got


def eight_streams_give_each_its_solo_tokens():
    with Server() as s:
        solo = [ids_of(s.stream("/v1/completions", body(i, 100))) for i in range(8)]
        together = at_once([lambda i=i: ids_of(s.stream("/v1/completions", body(i, 100)))
                            for i in range(8)])
        assert together == solo and all(len(x) == 100 for x in solo)
        s.idle()


main([weights_are_read_once_a_step_at_batch_1_4_and_8,
      eight_streams_give_each_its_solo_tokens])
