/* vec_math.inl - functions over vector words. */

/* e^x: error below 2 ulp; 0 below -86.6, e^88 above 88, NaN for NaN. 2^n * p(r) with
 * |r| <= ln 2 / 2 and a Taylor polynomial of degree 7. */
VEC vf vf_exp(vf x)
{
    vf n, r, p;

    x = vf_min(vf_set(88), x);
    n = vf_round(vf_mul(x, vf_set(0x1.715476p+0f)));
    r = vf_fma(n, vf_set(-0x1.62e4p-1f), x); /* ln 2 in two parts, the first of 14 bits */
    r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), r);
    p = vf_fma(r, vf_set(1 / 5040.0f), vf_set(1 / 720.0f));
    p = vf_fma(r, p, vf_set(1 / 120.0f));
    p = vf_fma(r, p, vf_set(1 / 24.0f));
    p = vf_fma(r, p, vf_set(1 / 6.0f));
    p = vf_fma(r, p, vf_set(0.5f));
    p = vf_fma(r, p, vf_set(1));
    p = vf_fma(r, p, vf_set(1));
    return vf_zero_below(x, vf_set(-86.6f), vf_exp2i(p, vf_int(n)));
}

/* x / (1 + e^-x) */
VEC vf vf_silu(vf x)
{
    return vf_div(x, vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), x))));
}
