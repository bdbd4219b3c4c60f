/* A kernel pack in C: RMSNorm of floats, `out = x * weight / sqrt(mean(x^2) + epsilon)`. */

#include <stdint.h>

#define EXPORT(name) __attribute__((export_name(#name))) name

/* Results of functions. */
enum { OK, INVALID_INPUT, INVALID_OUTPUT, INVALID_PARAMETERS };

/* Numbers that are added side by side, which the compiler makes vectors of: it may not change the order of additions. */
enum { LANES = 16 };

/* Where a tensor is in the memory of this module: offset and size in bytes. */
struct span { uint32_t offset, size; };

/* What the host says of a call. */
struct descriptor { struct span a, b, out, scratch, params; };

int32_t EXPORT(kernel_info)(uint32_t *to) {
    to[0] = 1;  /* the version of the interface */
    to[1] = 16; /* the alignment of tensors */
    to[2] = 0;  /* bytes of scratch memory */
    to[3] = 0;
    return OK;
}

int32_t EXPORT(kernel_init)(uint32_t params, uint32_t len) { return OK; }

int32_t EXPORT(kernel_cleanup)(void) { return OK; }

static float squares(const float *x, uint32_t n) {
    float sums[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane] * x[i + lane];
    for (; i < n; i++) sum += x[i] * x[i];
    for (uint32_t lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

int32_t EXPORT(kernel_forward)(const struct descriptor *d) {
    const float *x = (const float *)d->a.offset, *weight = (const float *)d->b.offset;
    const float *params = (const float *)d->params.offset;
    float *out = (float *)d->out.offset;
    uint32_t n = d->b.size / 4;
    if (d->params.size < 4 || !(params[0] >= 0)) return INVALID_PARAMETERS;
    if (n == 0 || d->a.size % d->b.size != 0) return INVALID_INPUT;
    if (d->out.size != d->a.size) return INVALID_OUTPUT;
    for (uint32_t row = 0; row < d->a.size / d->b.size; row++, x += n, out += n) {
        float factor = 1 / __builtin_sqrtf(squares(x, n) / n + params[0]);
        for (uint32_t i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
    }
    return OK;
}
