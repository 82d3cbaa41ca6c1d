/* softmax.inl - what a query sees of a split, and its scores there made probabilities. */

struct span {
    int32_t lo, hi; /* visible: [lo, hi), counted from the split's first position */
};

/* A span's part of the page that begins at at0, counted from there. */
static struct span on_page(struct span s, int32_t at0)
{
    s.lo = s.lo > at0 ? s.lo - at0 : 0;
    s.hi = s.hi - at0 < MC_PAGE ? s.hi - at0 : MC_PAGE;
    return s;
}

static void fill(float *x, int32_t lo, int32_t hi, float value)
{
    for (; lo < hi; lo++)
        x[lo] = value;
}

/* Scores [MC_SPLIT] to probabilities; ml: {max, sum}. Whole vectors are worked on, aligned in
 * the split; what is not visible counts as a score of -inf. */
static void soften(float *prob, struct span see, float scale, float *ml)
{
    int32_t lo = see.lo / VN * VN, hi = (see.hi + VN - 1) / VN * VN, j;
    vf max = vf_set(-INFINITY), sum = vf_set(0), x;

    for (j = lo; j < hi; j += VN)
        vf_store(prob + j, vf_mul(vf_load(prob + j), vf_set(scale)));
    fill(prob, lo, see.lo, -INFINITY);
    fill(prob, see.hi, hi, -INFINITY);
    for (j = lo; j < hi; j += VN)
        max = vf_max(vf_load(prob + j), max); /* passes over a NaN; the sum finds it */
    ml[0] = vf_top(max);
    for (j = lo; j < hi; j += VN) {
        x = vf_exp(vf_sub(vf_load(prob + j), vf_set(ml[0])));
        sum = vf_add(sum, x);
        vf_store(prob + j, x);
    }
    ml[1] = vf_sum(sum);
}
