// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/contract.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Thread block on the host: the group that a kernel's body gets in emulation. A body is a sequence of phases. `each`
/// runs a phase for all threads and ends with a barrier; `alone` has no barrier and is for phases that touch only a
/// thread's own data. The threads of a phase run one after another in an order derived from `seed` and the phase, which
/// exposes dependence on the order. Shared memory is initialized to NaN, and asynchronous copies arrive only when they
/// are waited for.
class emulated_block {
public:
    /// One T for each thread, kept between phases.
    template <class T>
    class registers {
    public:
        explicit registers(unsigned threads) : own_(threads) {}
        [[nodiscard]] T& operator[](unsigned thread) { return own_[thread]; }

    private:
        std::vector<T> own_;
    };

    emulated_block(std::uint64_t block, unsigned threads, std::size_t shared_bytes, std::uint64_t seed)
        : block_(block), order_(threads), shared_((shared_bytes + 15) / 16), shared_bytes_(shared_bytes), seed_(seed) {
        std::iota(order_.begin(), order_.end(), 0u);
        if (!shared_.empty())
            std::memset(shared_.data(), 0xFF, shared_.size() * 16);
    }

    [[nodiscard]] std::uint64_t block() const noexcept { return block_; }
    [[nodiscard]] unsigned threads() const noexcept { return static_cast<unsigned>(order_.size()); }

    template <class T>
    [[nodiscard]] registers<T> own() const {
        return registers<T>(threads());
    }

    /// Array of `count` T in shared memory, at `offset` bytes.
    template <class T>
    [[nodiscard]] T* shared(std::size_t offset, [[maybe_unused]] std::size_t count) {
        expects(offset % alignof(T) == 0 && offset + count * sizeof(T) <= shared_bytes_,
                "a kernel keeps to the shared memory that it asked for");
        return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(shared_.data()) + offset);
    }

    template <class Phase>
    void each(Phase&& phase) {
        shuffle();
        for (const unsigned thread : order_)
            phase(thread);
    }
    template <class Phase>
    void alone(Phase&& phase) {
        each(std::forward<Phase>(phase));
    }

    /// Makes the results of `alone` phases visible to all threads.
    void barrier() noexcept {}

    /// Copies 16 bytes to shared memory, or writes zeros if `whole` is false. Called inside a phase.
    void copy_async(void* to, const void* from, bool whole) { open_.push_back({to, whole ? from : nullptr}); }
    /// Closes the batch of copies since the last call.
    void commit() { batches_.push_back(std::exchange(open_, {})); }
    /// Waits until all but the last `Left` batches have arrived for every thread; a barrier.
    template <int Left>
    void arrive() {
        for (; batches_.size() > static_cast<std::size_t>(Left); batches_.pop_front())
            for (const arrival& each : batches_.front()) {
                if (each.from != nullptr)
                    std::memcpy(each.to, each.from, 16);
                else
                    std::memset(each.to, 0, 16);
            }
    }

private:
    struct arrival {
        void* to;
        const void* from;
    };
    struct alignas(16) unit {
        std::byte bytes[16];
    };

    void shuffle() {
        for (std::size_t left = order_.size(); left > 1; --left) {
            seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
            std::swap(order_[left - 1], order_[(seed_ >> 33) % left]);
        }
    }

    std::uint64_t block_;
    std::vector<unsigned> order_;
    std::vector<unit> shared_;
    std::size_t shared_bytes_;
    std::uint64_t seed_;
    std::vector<arrival> open_;
    std::deque<std::vector<arrival>> batches_;
};

/// Runs a kernel's blocks one after another, in descending order if `seed` is odd.
template <class Kernel>
void run_emulated(const Kernel& kernel, std::uint64_t seed) {
    const std::uint64_t blocks = kernel.blocks();
    for (std::uint64_t i = 0; i < blocks; ++i) {
        emulated_block group(seed % 2 == 0 ? i : blocks - 1 - i, Kernel::threads, kernel.shared_bytes(), seed + i);
        kernel(group);
    }
}

}}} // namespace kvcache::cuda
