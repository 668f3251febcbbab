// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "rows.hpp"
#include <sys/mman.h>

namespace bench {

/// The seconds since construction, on the monotonic clock.
class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    }

private:
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// Prevents the compiler from eliminating the computation of `value`.
inline void keep(const kvcache::f32x16& value) {
    volatile float sink = kvcache::sum(value);
    static_cast<void>(sink);
}

/// Measures the machine's peak: fused multiply-adds on registers, in FLOP/s over all threads. Each multiply-add counts
/// as two operations. Cost: about 10 ms.
[[nodiscard]] inline double fma_peak(kvcache::thread_pool& threads) {
    // Enough independent chains to hide the FMA latency, few enough to fit the registers.
    constexpr std::size_t chains = kvcache::detail::native_lanes == 16 ? 12 : 6;
    constexpr std::size_t pieces = 16, rounds = 4000000 / pieces; // more pieces than threads: one may wake late
    const stopwatch watch;
    threads.parallel_for(threads.threads() * pieces, [](std::size_t begin, std::size_t end) {
        for (std::size_t piece = begin; piece < end; ++piece) {
            float start[chains * 16]; // all differ; a compiler could merge two equal chains
            std::iota(std::begin(start), std::end(start), 0.0f);
            kvcache::f32x16 sums[chains];
            for (std::size_t chain = 0; chain < chains; ++chain)
                sums[chain] = kvcache::f32x16::load(start + chain * 16);
            const auto x = kvcache::f32x16::broadcast(0.999f), y = kvcache::f32x16::broadcast(0.001f);
            for (std::size_t round = 0; round < rounds; ++round)
                for (auto& s : sums)
                    s = kvcache::fma(s, x, y);
            for (const auto& s : sums)
                keep(s);
        }
    });
    return 2.0 * 16 * chains * rounds * static_cast<double>(threads.threads() * pieces) / watch.seconds();
}

/// A memory read benchmark: a buffer larger than any cache, in huge pages where the system provides them.
class stream {
public:
    explicit stream(std::size_t bytes = std::size_t{256} << 20) : bytes_(bytes / part * part) {
        data_.reset(static_cast<float*>(std::aligned_alloc(part, bytes_)));
        if (!data_)
            throw std::bad_alloc();
        madvise(data_.get(), bytes_, MADV_HUGEPAGE);
        std::fill_n(data_.get(), bytes_ / sizeof(float), 1.0f);
    }

    /// Returns the bytes per second of one sweep over the buffer by all threads, each over its own range. A sweep reads
    /// one, two or four streams per thread, since a prefetcher may follow several at once; the result is this call's
    /// rate of the variant with the best median so far. The best of the three in each call would be the luckiest
    /// sample, which no value that is measured once per limit could match.
    [[nodiscard]] double operator()(kvcache::thread_pool& threads) {
        const std::array<double, kinds> now = {sweep<1>(threads), sweep<2>(threads), sweep<4>(threads)};
        std::array<samples, kinds>& taken = taken_[threads.threads()];
        for (std::size_t kind = 0; kind < kinds; ++kind)
            taken[kind].add(now[kind]);
        const auto best = std::max_element(taken.begin(), taken.end(),
                                           [](const samples& a, const samples& b) { return a.median() < b.median(); });
        return now[static_cast<std::size_t>(best - taken.begin())];
    }

private:
    struct release {
        void operator()(float* memory) const noexcept { std::free(memory); }
    };
    static constexpr std::size_t part = std::size_t{2} << 20; // a huge page
    static constexpr std::size_t kinds = 3;

    template <std::size_t Streams>
    [[nodiscard]] double sweep(kvcache::thread_pool& threads) const {
        const std::size_t pieces = threads.threads() * 8;
        const std::size_t length = bytes_ / sizeof(float) / pieces / Streams / 128 * 128;
        const stopwatch watch;
        threads.parallel_for(pieces, [&](std::size_t begin, std::size_t end) {
            constexpr std::size_t lines = 8 / Streams; // vectors of one stream per iteration
            kvcache::f32x16 sums[8];
            for (auto& s : sums)
                s = kvcache::f32x16::zero();
            for (std::size_t piece = begin; piece < end; ++piece)
                for (std::size_t i = 0; i < length; i += 16 * lines)
                    for (std::size_t j = 0; j < 8; ++j) {
                        const float* from = data_.get() + (piece * Streams + j / lines) * length;
                        sums[j] = sums[j] + kvcache::f32x16::load(from + i + j % lines * 16);
                    }
            for (const auto& s : sums)
                keep(s);
        });
        return static_cast<double>(length * sizeof(float) * Streams * pieces) / watch.seconds();
    }

    std::size_t bytes_;
    std::unique_ptr<float, release> data_;
    std::map<std::size_t, std::array<samples, kinds>> taken_; // keyed by the number of threads
};

} // namespace bench
