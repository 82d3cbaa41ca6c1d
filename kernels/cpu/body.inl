/* body.inl - the operations that go through weights or rows (attn_ragged
 * through both weights and pages), over the vector words of the
 * vec_*.h that was included before it: one translation unit an instruction set, so that a
 * binary runs anywhere. Owns nothing; bodies run on a stream's threads.
 *
 * Why int16 activations for quantised weights: on SmolLM2-135M (Q4_1) the KL divergence of
 * the logits from f32 activations is 2.9e-3 with int8 and a scale every 32 columns (the
 * answer to a plain question changes), 9.3e-5 with bf16, 5.8e-8 with int16. A pair of int16
 * is one dpwssd or maddwd, at full rate, where bf16 dots run at a quarter; and integer dots
 * are exact, so their order is free. Float weights take f32 activations. */
#include "kernels/cpu/unit.inl"

#include "kernels/host/fold.h"
#include "kernels/host/kv.h"

#include "kernels/cpu/tile.inl"
#include "kernels/cpu/panel.inl"
#include "kernels/cpu/linear.inl"
#include "kernels/cpu/rows.inl"
#include "kernels/cpu/route.inl"
#include "kernels/cpu/moe.inl"
#include "kernels/cpu/heads.inl"
#include "kernels/cpu/softmax.inl"
#include "kernels/cpu/latent.inl"
#include "kernels/cpu/ragged.inl"
#include "kernels/cpu/tensor.inl"
