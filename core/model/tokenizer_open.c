/* tokenizer_open.c - a checkpoint's tokenizer, whichever kind of checkpoint it is.
 *
 * Owns what it builds until it hands it out. THREAD: the one that opens. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>

#include "core/weights/weights.h"

enum { FILE_MAX = 256 << 20, TEMPLATE_MAX = 4 << 20 };

/* chat_template.jinja, where there is one, goes before tokenizer_config.json's. */
static int read_template(const struct mc_ckpt *c, struct mc_tok *t, struct mc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = mc_ckpt_file(c, "chat_template.jinja", TEMPLATE_MAX, &text, &n, err);

    if (rc == MC_ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    free(t->chat);
    t->chat = text;
    t->n_chat = n;
    return 0;
}

static int open_dir(const struct mc_ckpt *c, struct mc_tok **out, struct mc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    const json_t *config = mc_ckpt_tokenizer_config(c);
    int rc = mc_ckpt_file(c, "tokenizer.json", FILE_MAX, &text, &n, err);
    bool tiktoken = rc == MC_ENOENT;

    if (tiktoken) {
        rc = mc_ckpt_file(c, "tiktoken.model", FILE_MAX, &text, &n, err);
        if (rc == MC_ENOENT)
            return mc_fail(err, rc, "%s has no tokenizer: neither tokenizer.json nor "
                           "tiktoken.model", mc_ckpt_path(c));
    }
    if (rc < 0)
        return rc;
    rc = (tiktoken ? mc_tok_from_tiktoken : mc_tok_from_json)(text, n, config, out, err);
    free(text);
    if (rc < 0)
        return rc;
    rc = read_template(c, *out, err);
    if (rc < 0) {
        mc_tok_close(*out);
        *out = NULL;
    }
    return rc;
}

int mc_tok_open(const struct mc_ckpt *c, struct mc_tok **out, struct mc_err *err)
{
    const struct mc_gguf *g = mc_ckpt_gguf(c);
    int rc;

    *out = NULL;
    rc = g ? mc_tok_from_gguf(g, out, err) : open_dir(c, out, err);
    if (mc_ckpt_intact(c, err) < 0) {
        mc_tok_close(*out);
        *out = NULL;
        rc = MC_EIO;
    }
    return rc;
}
