/* form.h - how a checkpoint stores each tensor, told from its config.json alone.
 *
 * For planning where there are no tensors yet: a loader goes by those that are there
 * (core/weights/matrix.c).
 * OWNS: a scheme its compiled patterns. THREAD: open and close one; asking any. */
#ifndef MC_MODEL_FORM_H
#define MC_MODEL_FORM_H

#include <jansson.h>

#include "core/model/tensors.h"
#include "kernels/kernels.h"

/* A disk format with its scales. */
struct mc_form {
    uint16_t fmt;              /* enum mc_disk_fmt */
    uint8_t n_tensor;          /* that hold one matrix */
    uint8_t scale_bytes;       /* of one scale, 0: none */
    int32_t block_n, block_k;  /* rows and columns a scale; 0: all of them */
    int32_t extra;             /* bytes beside: a shape, a factor */
};

struct mc_form mc_form_plain(uint16_t fmt); /* without scales */
struct mc_form mc_form_fp8(void);           /* e4m3 in blocks of 128 x 128 */
struct mc_form mc_form_int4(int32_t group); /* symmetric, compressed-tensors */
struct mc_form mc_form_nvfp4(void);         /* compressed-tensors */
struct mc_form mc_form_of(const struct mc_disk *d); /* of a matrix that is there */

uint64_t mc_form_bytes(const struct mc_form *f, int64_t n, int64_t k);
/* "bf16", "fp8-block", "int4-g32"; returns buf. */
enum { MC_FORM_NAME = 24 };
const char *mc_form_name(const struct mc_form *f, char buf[MC_FORM_NAME]);

struct mc_scheme;
/* config: the parsed config.json, borrowed until close. A quantization_config that is not
 * understood is refused by its field's name. */
int mc_scheme_open(const json_t *config, struct mc_scheme **out, struct mc_err *err);
void mc_scheme_close(struct mc_scheme *s);
/* The form of a tensor of the table; name: with the checkpoint's prefix. */
struct mc_form mc_scheme_of(const struct mc_scheme *s, const struct mc_tensor_spec *t,
                            const char *name);

#endif
