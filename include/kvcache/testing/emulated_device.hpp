// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/cuda/device.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

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

/// Memory sizes and injected faults of an emulated device.
struct emulated_options {
    std::size_t bytes = std::size_t{1} << 30;        ///< Device memory.
    std::size_t pinned_bytes = std::size_t{1} << 30; ///< Host memory that may be pinned.
    std::uint64_t fail_at = 0; ///< Number of the fallible call that fails, counted from one; 0: none.
    std::uint64_t seed = 1;    ///< Seed of the order of threads and blocks.
};

/// Counters of an emulated device.
struct emulated_counts {
    std::uint64_t calls = 0;    ///< Fallible calls.
    std::uint64_t batches = 0;  ///< Calls to copy.
    std::uint64_t pieces = 0;   ///< Pieces of these calls.
    std::uint64_t launches = 0; ///< Kernel launches.
    std::size_t to_device = 0;  ///< Bytes copied to the device by work that has run.
    std::size_t to_host = 0;
    std::size_t within = 0;
    std::size_t bytes = 0;  ///< Device memory currently allocated.
    std::size_t pinned = 0; ///< Pinned memory currently allocated.
};

/// Device emulated on the host, for tests of code that drives a device. Work is deferred until it is waited for: a
/// stream runs only when it is synchronized, or when another stream waits for its event, and no further than necessary.
/// Code that reads before it waits therefore sees stale bytes. Memory is initialized to 0xCD. Faults and out-of-memory
/// are injected by the options.
class emulated_device {
public:
    explicit emulated_device(emulated_options options = {}) : options_(options) {}
    emulated_device(const emulated_device&) = delete;
    emulated_device& operator=(const emulated_device&) = delete;
    ~emulated_device() {
        for (auto* kind : {&memory_, &pinned_})
            for (const auto& [at, bytes] : *kind)
                ::operator delete (at, std::align_val_t{alignment});
    }

    [[nodiscard]] std::string name() const { return "emulated"; }
    [[nodiscard]] const emulated_counts& counts() const noexcept { return counts_; }
    /// Makes the n-th call from now fail; 0: none.
    void fail_next(std::uint64_t n) noexcept { options_.fail_at = n == 0 ? 0 : counts_.calls + n; }
    /// Device memory at an address, for tests; bypasses all streams.
    [[nodiscard]] std::span<const std::byte> peek(const std::byte* at, std::size_t bytes) const {
        expects(inside(memory_, at, bytes), "peek looks at memory of the device");
        return {at, bytes};
    }
    /// Returns whether all enqueued work has run.
    [[nodiscard]] bool idle() const noexcept {
        for (const queue& each : streams_)
            if (!each.work.empty())
                return false;
        return true;
    }

    [[nodiscard]] result<std::byte*> allocate(std::size_t bytes) {
        return take(memory_, counts_.bytes, options_.bytes, bytes, "device memory");
    }
    [[nodiscard]] result<std::byte*> allocate_pinned(std::size_t bytes) {
        return take(pinned_, counts_.pinned, options_.pinned_bytes, bytes, "pinned memory");
    }
    /// Runs all work first, as the CUDA runtime does.
    void deallocate(std::byte* at) noexcept { give(memory_, counts_.bytes, at); }
    void deallocate_pinned(std::byte* at) noexcept { give(pinned_, counts_.pinned, at); }

    [[nodiscard]] result<cuda::stream_id> open_stream() {
        if (auto ready = call("stream"); !ready)
            return ready.error();
        streams_.emplace_back();
        return cuda::stream_id{static_cast<std::uint32_t>(streams_.size() - 1)};
    }
    [[nodiscard]] result<cuda::event_id> open_event() {
        if (auto ready = call("event"); !ready)
            return ready.error();
        events_.emplace_back();
        return cuda::event_id{static_cast<std::uint32_t>(events_.size() - 1)};
    }
    void close(cuda::stream_id id) noexcept { run(id, of(id).put); }
    void close(cuda::event_id) noexcept {}

    [[nodiscard]] result<void> record(cuda::event_id event, cuda::stream_id stream) {
        if (auto ready = call("event"); !ready)
            return ready;
        of(event) = {stream, ++of(stream).put};
        of(stream).work.push_back([] {});
        return {};
    }
    [[nodiscard]] result<void> wait(cuda::stream_id stream, cuda::event_id event) {
        if (auto ready = call("event"); !ready)
            return ready;
        put(stream, [this, mark = of(event)] { run(mark.stream, mark.after); });
        return {};
    }
    [[nodiscard]] result<void> synchronise(cuda::stream_id stream) {
        if (auto ready = call("stream"); !ready)
            return ready;
        run(stream, of(stream).put);
        return {};
    }
    [[nodiscard]] result<void> synchronise(cuda::event_id event) {
        if (auto ready = call("event"); !ready)
            return ready;
        run(of(event).stream, of(event).after);
        return {};
    }
    /// Each call that returns false advances the stream by one step.
    [[nodiscard]] result<bool> done(cuda::event_id event) {
        if (auto ready = call("event"); !ready)
            return ready.error();
        const mark at = of(event);
        if (streams_.empty() || of(at.stream).ran >= at.after)
            return true;
        run(at.stream, of(at.stream).ran + 1);
        return false;
    }

    [[nodiscard]] result<void> copy(cuda::stream_id stream, cuda::copy_way way,
                                    std::span<const cuda::copy_piece> pieces) {
        if (auto ready = call("copy"); !ready)
            return ready;
        for ([[maybe_unused]] const cuda::copy_piece& piece : pieces) {
            expects(way == cuda::copy_way::to_device || inside(memory_, piece.from, piece.bytes),
                    "what is copied from the device lies there");
            expects(way == cuda::copy_way::to_host || inside(memory_, piece.to, piece.bytes),
                    "what is copied to the device goes there");
        }
        ++counts_.batches;
        counts_.pieces += pieces.size();
        put(stream, [this, way, all = std::vector<cuda::copy_piece>(pieces.begin(), pieces.end())] {
            std::size_t& moved = way == cuda::copy_way::to_device ? counts_.to_device
                                 : way == cuda::copy_way::to_host ? counts_.to_host
                                                                  : counts_.within;
            for (const cuda::copy_piece& piece : all) {
                std::memcpy(piece.to, piece.from, piece.bytes);
                moved += piece.bytes;
            }
        });
        return {};
    }
    [[nodiscard]] result<void> fill(cuda::stream_id stream, std::byte* to, std::byte with, std::size_t bytes) {
        if (auto ready = call("fill"); !ready)
            return ready;
        expects(inside(memory_, to, bytes), "what is filled lies on the device");
        put(stream, [=] { std::memset(to, std::to_integer<int>(with), bytes); });
        return {};
    }
    template <class Kernel>
    [[nodiscard]] result<void> launch(cuda::stream_id stream, const Kernel& kernel) {
        if (auto ready = call("launch"); !ready)
            return ready;
        ++counts_.launches;
        put(stream, [kernel, seed = options_.seed + counts_.launches] { run_emulated(kernel, seed); });
        return {};
    }

private:
    static constexpr std::size_t alignment = 256;
    using allocations = std::map<std::byte*, std::size_t>;
    struct queue {
        std::deque<std::function<void()>> work = {};
        std::uint64_t put = 0; // work items enqueued so far
        std::uint64_t ran = 0;
    };
    struct mark {
        cuda::stream_id stream = {};
        std::uint64_t after = 0; // passed once this many items have run
    };

    [[nodiscard]] queue& of(cuda::stream_id id) { return streams_[static_cast<std::size_t>(id)]; }
    [[nodiscard]] mark& of(cuda::event_id id) { return events_[static_cast<std::size_t>(id)]; }

    [[nodiscard]] result<void> call(const char* field) {
        if (++counts_.calls == options_.fail_at)
            return error{error_code::io, field, "the emulated device was told to fail here"};
        return {};
    }
    void put(cuda::stream_id id, std::function<void()> work) {
        of(id).work.push_back(std::move(work));
        ++of(id).put;
    }
    void run(cuda::stream_id id, std::uint64_t until) {
        if (streams_.empty())
            return;
        while (of(id).ran < until) {
            const auto next = std::move(of(id).work.front());
            of(id).work.pop_front();
            ++of(id).ran;
            next();
        }
    }

    [[nodiscard]] static bool inside(const allocations& all, const std::byte* at, std::size_t bytes) {
        auto above = all.upper_bound(const_cast<std::byte*>(at));
        if (above == all.begin())
            return false;
        const auto& [from, size] = *--above;
        return at + bytes <= from + size;
    }
    [[nodiscard]] result<std::byte*> take(allocations& all, std::size_t& out, std::size_t most, std::size_t bytes,
                                          const char* field) {
        if (auto ready = call(field); !ready)
            return ready.error();
        if (bytes > most - out)
            return error{error_code::out_of_memory, field,
                         std::to_string(bytes) + " bytes asked for, " + std::to_string(most - out) + " left"};
        auto* const at =
            static_cast<std::byte*>(::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{alignment}, std::nothrow));
        if (at == nullptr)
            return error{error_code::out_of_memory, field, std::to_string(bytes) + " bytes asked for, none left"};
        std::memset(at, 0xCD, bytes);
        all.emplace(at, bytes);
        out += bytes;
        return at;
    }
    void give(allocations& all, std::size_t& out, std::byte* at) noexcept {
        if (at == nullptr)
            return;
        for (std::size_t i = 0; i < streams_.size(); ++i)
            run(cuda::stream_id{static_cast<std::uint32_t>(i)}, streams_[i].put);
        const auto found = all.find(at);
        if (found == all.end())
            return;
        out -= found->second;
        all.erase(found);
        ::operator delete (at, std::align_val_t{alignment});
    }

    emulated_options options_;
    emulated_counts counts_;
    std::deque<queue> streams_; // a deque: streams may be added while one runs, without moving it
    std::vector<mark> events_;
    allocations memory_, pinned_;
};

static_assert(cuda::device<emulated_device>);

}}} // namespace kvcache::testing
