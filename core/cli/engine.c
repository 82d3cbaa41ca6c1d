/* engine.c - an engine as the settings ask for it. Owns nothing. THREAD: any. */
#include "core/cli/cli.h"
#include "core/mc.h"

int mc_cli_engine(const struct mc_settings *s, const char *model, struct mc_engine **out,
                  struct mc_err *err)
{
    struct mc_engine_opts o = {
        .model = model,
        .backend = s->backend,
        .cpu = *s->cpu ? s->cpu : NULL,
        .threads = (int)s->threads,
        .ranks = (int32_t)s->ranks,
        .shard_tokens = (int32_t)s->shard_tokens,
        .kv = s->kv,
        .kv_bytes = (uint64_t)s->kv_memory,
        .swap_bytes = s->swap_memory,
        .max_context = (int32_t)s->max_context,
        .max_seqs = (int32_t)s->max_seqs,
        .max_waiting = (int32_t)s->max_waiting,
        .chunk = (int32_t)s->chunk,
        .mla_expand = (int32_t)s->mla_expand,
        .prefill_bf16 = *s->prefill_kv != 0,
        .tensor_bytes = (uint64_t)s->tensor_memory,
        .no_page_tags = !s->page_tags,
    };

    return mc_engine_open(&o, out, err);
}
