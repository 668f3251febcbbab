// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/aligned.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/emulated_block.hpp>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI::cuda {

/// What an emulated device has and where it fails.
struct emulated_options {
    std::size_t bytes = std::size_t{1} << 30;        ///< Memory of the device.
    std::size_t pinned_bytes = std::size_t{1} << 30; ///< Memory of the host that may be pinned.
    std::uint64_t fail_at = 0;                       ///< Which call that may fail does, counted from one; 0 means none.
    std::uint64_t seed = 1;                          ///< In which order threads and blocks run.
};

/// What an emulated device was asked for.
struct device_counts {
    std::uint64_t calls = 0;    ///< Of whatever may fail.
    std::uint64_t batches = 0;  ///< Calls to copy.
    std::uint64_t pieces = 0;   ///< Their pieces.
    std::uint64_t launches = 0; ///< Kernels.
    std::size_t to_device = 0;  ///< Bytes copied by then executed work.
    std::size_t to_host = 0;
    std::size_t within = 0;
    std::size_t bytes = 0;  ///< Device memory that is out now.
    std::size_t pinned = 0; ///< Pinned memory that is out now.
};

/// A device on the host, for tests of what drives one. Work is put off until somebody waits for it: a stream runs when
/// it is synchronised, or when one that runs waits for its event, and no further than it must. What reads before it
/// waits thus reads stale bytes, and memory begins as 0xCD. It fails and runs out of memory where it is told to.
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
    [[nodiscard]] const device_counts& counts() const noexcept { return counts_; }
    /// Fails the n-th call from now; 0 means none.
    void fail_next(std::uint64_t n) noexcept { options_.fail_at = n == 0 ? 0 : counts_.calls + n; }
    /// What the device's memory holds at an address, for a test to look at: behind the back of every stream.
    [[nodiscard]] std::span<const std::byte> peek(const std::byte* at, std::size_t bytes) const {
        expects(inside(memory_, at, bytes), "peek looks at memory of the device");
        return {at, bytes};
    }
    /// Whether all work that was put into streams has run.
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
    /// Runs all work first, as the runtime does.
    void deallocate(std::byte* at) noexcept { give(memory_, counts_.bytes, at); }
    void deallocate_pinned(std::byte* at) noexcept { give(pinned_, counts_.pinned, at); }

    [[nodiscard]] result<stream_id> open_stream() {
        if (auto ready = call("stream"); !ready)
            return ready.error();
        streams_.emplace_back();
        return stream_id{static_cast<std::uint32_t>(streams_.size() - 1)};
    }
    [[nodiscard]] result<event_id> open_event() {
        if (auto ready = call("event"); !ready)
            return ready.error();
        events_.emplace_back();
        return event_id{static_cast<std::uint32_t>(events_.size() - 1)};
    }
    void close(stream_id id) noexcept { run(id, of(id).put); }
    void close(event_id) noexcept {}

    [[nodiscard]] result<void> record(event_id event, stream_id stream) {
        if (auto ready = call("event"); !ready)
            return ready;
        of(event) = {stream, ++of(stream).put};
        of(stream).work.push_back([] {});
        return {};
    }
    [[nodiscard]] result<void> wait(stream_id stream, event_id event) {
        if (auto ready = call("event"); !ready)
            return ready;
        put(stream, [this, mark = of(event)] { run(mark.stream, mark.after); });
        return {};
    }
    [[nodiscard]] result<void> synchronise(stream_id stream) {
        if (auto ready = call("stream"); !ready)
            return ready;
        run(stream, of(stream).put);
        return {};
    }
    [[nodiscard]] result<void> synchronise(event_id event) {
        if (auto ready = call("event"); !ready)
            return ready;
        run(of(event).stream, of(event).after);
        return {};
    }
    /// Each call that says no lets the stream come one step further.
    [[nodiscard]] result<bool> done(event_id event) {
        if (auto ready = call("event"); !ready)
            return ready.error();
        const mark at = of(event);
        if (streams_.empty() || of(at.stream).ran >= at.after)
            return true;
        run(at.stream, of(at.stream).ran + 1);
        return false;
    }

    [[nodiscard]] result<void> copy(stream_id stream, copy_way way, std::span<const copy_piece> pieces) {
        if (auto ready = call("copy"); !ready)
            return ready;
        for ([[maybe_unused]] const copy_piece& piece : pieces) {
            expects(way == copy_way::to_device || inside(memory_, piece.from, piece.bytes),
                    "what is copied from the device lies there");
            expects(way == copy_way::to_host || inside(memory_, piece.to, piece.bytes),
                    "what is copied to the device goes there");
        }
        ++counts_.batches;
        counts_.pieces += pieces.size();
        put(stream, [this, way, all = std::vector<copy_piece>(pieces.begin(), pieces.end())] {
            std::size_t& moved = way == copy_way::to_device ? counts_.to_device
                                 : way == copy_way::to_host ? counts_.to_host
                                                            : counts_.within;
            for (const copy_piece& piece : all) {
                std::memcpy(piece.to, piece.from, piece.bytes);
                moved += piece.bytes;
            }
        });
        return {};
    }
    [[nodiscard]] result<void> fill(stream_id stream, std::byte* to, std::byte with, std::size_t bytes) {
        if (auto ready = call("fill"); !ready)
            return ready;
        expects(inside(memory_, to, bytes), "what is filled lies on the device");
        put(stream, [=] { std::memset(to, std::to_integer<int>(with), bytes); });
        return {};
    }
    template <class Kernel>
    [[nodiscard]] result<void> launch(stream_id stream, const Kernel& kernel) {
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
        std::uint64_t put = 0; // pieces of work so far
        std::uint64_t ran = 0;
    };
    struct mark {
        stream_id stream = {};
        std::uint64_t after = 0; // passed once so many have run
    };

    [[nodiscard]] queue& of(stream_id id) { return streams_[static_cast<std::size_t>(id)]; }
    [[nodiscard]] mark& of(event_id id) { return events_[static_cast<std::size_t>(id)]; }

    [[nodiscard]] result<void> call(const char* field) {
        if (++counts_.calls == options_.fail_at)
            return error{error_code::io, field, "the emulated device was told to fail here"};
        return {};
    }
    void put(stream_id id, std::function<void()> work) {
        of(id).work.push_back(std::move(work));
        ++of(id).put;
    }
    void run(stream_id id, std::uint64_t until) {
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
            run(stream_id{static_cast<std::uint32_t>(i)}, streams_[i].put);
        const auto found = all.find(at);
        if (found == all.end())
            return;
        out -= found->second;
        all.erase(found);
        ::operator delete (at, std::align_val_t{alignment});
    }

    emulated_options options_;
    device_counts counts_;
    std::deque<queue> streams_; // grows while one runs, and nothing moves
    std::vector<mark> events_;
    allocations memory_, pinned_;
};

static_assert(device<emulated_device>);

} // namespace kvcache::cuda
