// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/team.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace bench {

/// Seconds since a moment, on one clock.
class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    }

private:
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// Keeps what was computed.
inline void keep(const kvcache::f32x16& value) {
    volatile float sink = kvcache::sum(value);
    static_cast<void>(sink);
}

/// Fused multiply-adds from registers, the most that the machine does: FLOP a second of all threads, each multiply-add
/// counted as two. Takes about ten milliseconds.
[[nodiscard]] inline double fma_peak(kvcache::team& threads) {
    // Hides the latency, fits the registers.
    constexpr std::size_t chains = kvcache::detail::native_lanes == 16 ? 12 : 6;
    constexpr std::size_t rounds = 8'000'000;
    const stopwatch watch;
    threads.share(threads.threads(), [](std::size_t begin, std::size_t end) {
        for (std::size_t member = begin; member < end; ++member) {
            kvcache::f32x16 sums[chains];
            for (auto& s : sums)
                s = kvcache::f32x16::zero();
            const auto x = kvcache::f32x16::broadcast(0.999f), y = kvcache::f32x16::broadcast(0.001f);
            for (std::size_t round = 0; round < rounds; ++round)
                for (auto& s : sums)
                    s = kvcache::fma(s, x, y);
            for (const auto& s : sums)
                keep(s);
        }
    });
    return 2.0 * 16 * chains * rounds * static_cast<double>(threads.threads()) / watch.seconds();
}

/// Memory beyond any cache, in huge pages where the system gives them, and how fast it is read.
class stream {
public:
    explicit stream(std::size_t bytes = std::size_t{256} << 20) : bytes_(bytes / part * part) {
        data_.reset(static_cast<float*>(std::aligned_alloc(part, bytes_)));
        if (!data_)
            throw std::bad_alloc();
        madvise(data_.get(), bytes_, MADV_HUGEPAGE);
        std::fill_n(data_.get(), bytes_ / sizeof(float), 1.0f);
    }

    /// Bytes a second of one sweep by all threads, each through two ranges of its own at once: a core that prefetches
    /// two streams gets more than from one.
    [[nodiscard]] double operator()(kvcache::team& threads) const {
        const stopwatch watch;
        threads.share(bytes_ / part, [this](std::size_t begin, std::size_t end) {
            constexpr std::size_t lines = 4, step = 16 * lines;
            kvcache::f32x16 sums[2 * lines];
            for (auto& s : sums)
                s = kvcache::f32x16::zero();
            const std::size_t half = (end - begin) * part / sizeof(float) / 2;
            const float* lower = data_.get() + begin * part / sizeof(float);
            const float* upper = lower + half;
            for (std::size_t i = 0; i < half; i += step)
                for (std::size_t j = 0; j < lines; ++j) {
                    sums[j] = sums[j] + kvcache::f32x16::load(lower + i + 16 * j);
                    sums[lines + j] = sums[lines + j] + kvcache::f32x16::load(upper + i + 16 * j);
                }
            for (const auto& s : sums)
                keep(s);
        });
        return static_cast<double>(bytes_) / watch.seconds();
    }

private:
    struct release {
        void operator()(float* memory) const noexcept { std::free(memory); }
    };
    static constexpr std::size_t part = std::size_t{2} << 20; // a huge page

    std::size_t bytes_;
    std::unique_ptr<float, release> data_;
};

} // namespace bench
