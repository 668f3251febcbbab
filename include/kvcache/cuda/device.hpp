// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Queue of work on a device. Work in one stream runs in order; streams run concurrently.
enum class stream_id : std::uint32_t {};

/// Marker in a stream. An event that was never recorded counts as passed.
enum class event_id : std::uint32_t {};

/// One copy of a batch. The addresses tell device memory, pinned and ordinary host memory apart.
struct copy_piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;

    friend bool operator==(const copy_piece&, const copy_piece&) = default;
};

/// Direction of a batch of copies.
enum class copy_way { to_device, to_host, within_device };

/// Kernel: `blocks()` blocks of `threads` threads that share `shared_bytes()` of memory. Each block calls the kernel
/// with its group; testing::emulated_block documents the interface of a group.
template <class K>
concept device_kernel = std::copyable<K> && requires(const K kernel) {
    { kernel.blocks() } -> std::convertible_to<std::uint64_t>;
    { kernel.shared_bytes() } -> std::convertible_to<std::size_t>;
    { K::threads } -> std::convertible_to<unsigned>;
};

namespace detail {

// Sample that stands for any kernel in concept checks.
struct sample_kernel {
    static constexpr unsigned threads = 1;
    [[nodiscard]] std::uint64_t blocks() const { return 0; }
    [[nodiscard]] std::size_t shared_bytes() const { return 0; }
    template <class Group>
    void operator()(Group&) const {}
};

template <class D>
concept allocates = requires(D d, std::byte* memory, std::size_t bytes) {
    { d.allocate(bytes) } -> std::same_as<result<std::byte*>>;
    { d.allocate_pinned(bytes) } -> std::same_as<result<std::byte*>>;
    { d.deallocate(memory) }
    noexcept;
    { d.deallocate_pinned(memory) }
    noexcept;
};

template <class D>
concept streams = requires(D d, stream_id stream, event_id event) {
    { d.open_stream() } -> std::same_as<result<stream_id>>;
    { d.open_event() } -> std::same_as<result<event_id>>;
    { d.close(stream) }
    noexcept;
    { d.close(event) }
    noexcept;
    { d.record(event, stream) } -> std::same_as<result<void>>;
    { d.wait(stream, event) } -> std::same_as<result<void>>;
    { d.synchronise(stream) } -> std::same_as<result<void>>;
    { d.synchronise(event) } -> std::same_as<result<void>>;
    { d.done(event) } -> std::same_as<result<bool>>;
};

} // namespace detail

/// Device with its own memory and streams of work. `copy` and `fill` enqueue work and return; sources and destinations
/// must stay valid until the stream has passed them. `wait` blocks a stream until an event has passed, `synchronise`
/// blocks the caller. Allocations are aligned to 256 bytes and must be freed only when no stream uses them. Errors:
/// out_of_memory; io for failures of the device, including a fault of earlier work.
template <class D>
concept device = detail::allocates<D> && detail::streams<D> &&
    requires(D d, const D c, stream_id stream, std::span<const copy_piece> pieces, std::byte* to, std::size_t bytes) {
    { d.copy(stream, copy_way::to_device, pieces) } -> std::same_as<result<void>>;
    { d.fill(stream, to, std::byte{}, bytes) } -> std::same_as<result<void>>;
    { d.launch(stream, detail::sample_kernel{}) } -> std::same_as<result<void>>;
    { c.name() } -> std::convertible_to<std::string>;
};

}}} // namespace kvcache::cuda
