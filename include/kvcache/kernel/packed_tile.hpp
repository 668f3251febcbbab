// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/prefetch.hpp>
#include <kvcache/kernel/pack_rows.hpp>
#include <kvcache/kernel/simd.hpp>

#include <concepts>
#include <cstddef>
#include <limits>

namespace kvcache {

namespace detail {

// Inputs that a tile runs before it asks for what comes soon: fewer where its multiply-adds are twice as wide.
inline constexpr std::size_t asked_every = native_lanes == 16 ? 4 : 16;

// Bytes that come soon, in runs with gaps between them: every `asked_every` inputs a tile of packed rows asks so many
// times for the line at `at`, where a run begins, then goes on by `step`.
struct bytes_ahead {
    const void* base = nullptr;
    std::size_t at = 0;
    std::size_t step = 0;
    std::size_t times = 0;
    std::size_t run = std::numeric_limits<std::size_t>::max() / 2;
    std::size_t gap = 0;
};

// A product_tile() of packed rows and one strip of Panels panels. The weights come from the second cache; with
// AVX-512 they are asked for four inputs ahead. What is not float32 is widened on the way and written to `wide`, from
// which other rows read it then. It stays a function of its own: among others' code GCC finds no room for its
// registers. Requires: `inputs` is a multiple of 4.
template <std::size_t Rows, std::size_t Panels, weight_format Weight>
[[gnu::noinline]] inline void packed_tile(const float* x, const Weight* w, [[maybe_unused]] float* wide,
                                          std::size_t inputs, float* y, std::size_t y_stride, std::size_t outputs,
                                          bool begin, bytes_ahead ahead) {
    native_floats sums[Rows * Panels * native_parts];
    const bool whole = outputs >= Panels * 16; // all that meets here is asked for once, not at each vector
    // Calls body(index of the sums, where the results stand, first output) for each panel of each row.
    const auto each_panel = [&](auto body) KVCACHE_INLINE {
        float* row = y;
        unrolled<Rows>([&](auto r) KVCACHE_INLINE {
            if constexpr (r > 0)
                row += y_stride;
            keep(row); // or GCC computes all addresses first, and has no registers for them
            unrolled<Panels>([&](auto p) KVCACHE_INLINE {
                body(std::integral_constant<std::size_t, (r * Panels + p) * native_parts>{}, row + p * 16, p * 16);
            });
        });
    };
    if (begin)
        each_panel([&](auto at, const float*, std::size_t) KVCACHE_INLINE {
            unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sums[at + part] = native_floats(0.0f); });
        });
    else if (whole)
        each_panel([&](auto at, const float* from, std::size_t) KVCACHE_INLINE {
            unrolled<native_parts>([&](auto part) KVCACHE_INLINE {
                sums[at + part] = native_floats::load_unaligned(from + part * native_lanes);
            });
        });
    else
        each_panel([&](auto at, const float* from, std::size_t first) KVCACHE_INLINE {
            const f32x16 sum = first < outputs ? f32x16::load_up_to(from, outputs - first) : f32x16::zero();
            unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sums[at + part] = sum.part[part]; });
        });
    const float* soon = y + Rows * y_stride; // those of the next tile
    unrolled<Rows>([&](auto) KVCACHE_INLINE {
        unrolled<Panels>([&](auto p) KVCACHE_INLINE { prefetch_to_write(soon, p * 16); });
        soon += y_stride;
        keep(soon);
    });
    std::size_t end = ahead.at + ahead.run;
    for (std::size_t k = 0; k < inputs; k += 4) {
        if (k % asked_every == 0)
            for (std::size_t n = 0; n < ahead.times; ++n, ahead.at += ahead.step) {
                if (ahead.at >= end) {
                    ahead.at += ahead.gap;
                    end += ahead.gap + ahead.run;
                }
                prefetch_soon(static_cast<const std::byte*>(ahead.base), ahead.at);
            }
        unrolled<4>([&](auto i) KVCACHE_INLINE {
            f32x16 columns[Panels];
            unrolled<Panels>([&](auto p) KVCACHE_INLINE {
                columns[p] = f32x16::load(w + (i * Panels + p) * 16);
                if constexpr (!std::same_as<Weight, float>)
                    columns[p].store(wide + (i * Panels + p) * 16);
            });
            unrolled<Rows>([&](auto r) KVCACHE_INLINE {
                const native_floats a(x[i * packed_rows + r]);
                if constexpr (native_lanes == 16 && r < Panels)
                    prefetch(w, ((i + 4) * Panels + r) * 16);
                unrolled<Panels * native_parts>([&](auto v) KVCACHE_INLINE {
                    accumulate(sums[r * Panels * native_parts + v], a,
                               columns[v / native_parts].part[v % native_parts]);
                });
            });
        });
        x += 4 * packed_rows, w += 4 * Panels * 16;
        keep(x), keep(w);
        if constexpr (!std::same_as<Weight, float>) {
            wide += 4 * Panels * 16;
            keep(wide);
        }
    }
    if (whole)
        each_panel([&](auto at, float* to, std::size_t) KVCACHE_INLINE {
            unrolled<native_parts>([&](auto part)
                                       KVCACHE_INLINE { sums[at + part].store_unaligned(to + part * native_lanes); });
        });
    else
        each_panel([&](auto at, float* to, std::size_t first) KVCACHE_INLINE {
            f32x16 sum;
            unrolled<native_parts>([&](auto part) KVCACHE_INLINE { sum.part[part] = sums[at + part]; });
            if (first < outputs)
                sum.store_up_to(to, outputs - first);
        });
}

} // namespace detail

} // namespace kvcache
