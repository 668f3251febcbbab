// SPDX-License-Identifier: MIT
#include <kvcache/kernel/gemm.hpp>

// A program of the compiled form.
int main() {
    kvcache::thread_pool alone;
    const float x = 2.0f, weight[] = {3.0f};
    float y = 0.0f;
    kvcache::packed_matrix<float> w(1, 1);
    w.set_row(0, weight);
    kvcache::gemm({&x, 1, 1}, w, {&y, 1}, alone);
    return y == 6.0f ? 0 : 1;
}
