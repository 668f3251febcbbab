// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/attention_part.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/cuda/device.hpp>
#include <kvcache/cuda/device_memory.hpp>
#include <kvcache/cuda/device_storage.hpp>
#include <kvcache/cuda/paged_attention.hpp>
#include <kvcache/cuda/quantize_rows.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/model/transformer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Attention of a forward pass over pages on a device, instead of `host_attention`. For each layer, rows are copied to
/// the device, a kernel writes them into the pages, others compute attention, and the host waits for the output. Each
/// row of a prompt is a sequence of its own that ends with it, so that its bits depend only on its own past, however
/// the prompt is split and batched. A demonstration: the host waits for each layer.
///
/// Allocates in the first `plan`. Failures there or later do not throw: `status` reports them, and no row of the batch
/// may be used then.
template <class Lease, device Device, row_format Format, unsigned Dim, unsigned Queries>
class device_attention {
public:
    /// `reach`: largest position of the model. Requires: the device outlives it.
    device_attention(Device& device, std::size_t reach) : own_(std::make_unique<working>(device, reach)) {}

    /// As host_attention::plan. Requires: the leases belong to one cache, with `device_rows` over a `device_storage` of
    /// this device.
    void plan(std::span<const attention_kind> kinds, std::span<const batch_slice<Lease>> batch, const thread_pool&) {
        own_->failed.reset();
        if (!batch.empty())
            own_->note(kinds.size() == 1 && kinds[0].rotation_scale == 1.0f
                           ? own_->plan(kinds[0].shape, batch, kinds[0].rows)
                           : unsupported());
    }

    /// As host_attention::write.
    void write(const Lease&, std::size_t, std::size_t row, const attended_layer&, std::span<const float> keys,
               std::span<const float> values) const {
        if (!own_->failed)
            own_->write(row, keys, values);
    }

    /// As host_attention::run; first writes the rows into the pages.
    void run(const attended_layer& at, thread_pool&) {
        if (own_->failed)
            return;
        own_->note(own_->run(index_of(at.layer)));
        if (own_->failed) // work under way still writes pages that the lease is about to release
            (void)own_->device->synchronise(*own_->stream);
    }

    /// Returns whether everything since the last `plan` succeeded. Errors: out_of_memory, out_of_range, io;
    /// unsupported, for an attention that is not `plain`.
    [[nodiscard]] result<void> status() const { return own_->failed ? result<void>(*own_->failed) : result<void>(); }

private:
    [[nodiscard]] static error unsupported() {
        return {error_code::unsupported, "attention_shape",
                "the kernels for devices have no windows, soft caps, sinks or partly scaled rotations: use "
                "host_attention"};
    }

    struct working {
        working(Device& of, std::size_t far)
            : device(&of),
              reach(static_cast<std::uint32_t>(std::min<std::size_t>(far, std::size_t{1} << 30))),
              turns(of),
              slots(of),
              in(of),
              out(of) {}
        working(const working&) = delete;
        working& operator=(const working&) = delete;
        ~working() {
            if (stream)
                device->close(*stream); // closing completes the work under way
            device->deallocate_pinned(pinned);
        }

        void note(const result<void>& done) {
            if (!done)
                failed = done.error();
        }

        [[nodiscard]] result<void> plan(const attention_shape& shape, std::span<const batch_slice<Lease>> batch,
                                        const query_rows& rows) {
            if (!shape.plain())
                return unsupported();
            storage = &batch.front().lease->storage();
            layout = batch.front().lease->codec().layout();
            expects(&storage->device() == device, "pages are attended on their own device");
            if (auto ready = open(shape); !ready)
                return ready;
            queries = rows;
            heads = shape.heads;
            attention_table table;
            std::vector<row_slot> places;
            for (const auto& part : batch) {
                const auto entries = part.lease->pages().table;
                for (std::size_t i = 0; i < part.tokens.size(); ++i) {
                    row_slot place; // rows that the lease already holds have none
                    if (const std::size_t to = part.row_of(i); !part.lease->opened().keeps(to)) {
                        const auto at = part.lease->slot_of(to);
                        place = {index_of(at.page), at.row};
                    }
                    places.push_back(place);
                    if (auto added =
                            table.add(seen(entries, part.limit(i) + 1), static_cast<std::int64_t>(part.position(i)));
                        !added)
                        return added;
                }
            }
            count = places.size();
            if (auto sent = slots.assign(*stream, places); !sent)
                return sent;
            if (auto planned = attention->plan(*stream, table); !planned)
                return planned;
            return make_room();
        }

        void write(std::size_t row, std::span<const float> keys, std::span<const float> values) const {
            ranges::copy(keys, staged() + row * side());
            ranges::copy(values, staged() + (count + row) * side());
        }

        [[nodiscard]] result<void> run(std::uint32_t layer) {
            float* const staged_queries = staged() + 2 * count * side();
            for (std::size_t row = 0; row < count; ++row)
                std::copy_n(queries.data + row * queries.stride, width(), staged_queries + row * width());
            const std::size_t sent = count * (2 * side() + width());
            auto* const there = reinterpret_cast<std::byte*>(in.data());
            const copy_piece going{pinned, there, sent * sizeof(float)};
            if (auto put = device->copy(*stream, copy_way::to_device, {&going, 1}); !put)
                return put;
            const token_rows made{there, there + count * side() * sizeof(float), row_format::f32};
            const auto append = quantize_rows<row_way::into_pages, Format>::make(
                layout, storage->pool(), layer, static_cast<std::uint32_t>(count), slots.data(), made);
            if (auto put = device->launch(*stream, append); !put)
                return put;
            if (auto put = attention->run(*stream, storage->pool(), layer, there + 2 * count * side() * sizeof(float),
                                          row_format::f32, out.data());
                !put)
                return put;
            const copy_piece coming{reinterpret_cast<const std::byte*>(out.data()), pinned,
                                    count * width() * sizeof(float)};
            if (auto put = device->copy(*stream, copy_way::to_host, {&coming, 1}); !put)
                return put;
            if (auto passed = device->synchronise(*stream); !passed)
                return passed;
            for (std::size_t row = 0; row < count; ++row)
                std::copy_n(staged() + row * width(), width(), queries.out + row * queries.out_stride);
            return {};
        }

        // The entries of the first `rows` rows.
        [[nodiscard]] std::span<const page_entry> seen(std::span<const page_entry> entries, std::size_t rows) {
            cut.clear();
            for (const page_entry& entry : entries) {
                if (rows == 0)
                    break;
                cut.push_back(entry);
                cut.back().count = static_cast<std::uint32_t>(std::min<std::size_t>(entry.count, rows));
                rows -= cut.back().count;
            }
            return cut;
        }

        // Opens the stream, the RoPE table and the attention, once.
        [[nodiscard]] result<void> open(const attention_shape& shape) {
            if (attention)
                return {};
            if (!stream) {
                auto opened = device->open_stream();
                if (!opened)
                    return opened.error();
                stream = *opened;
            }
            rope_table steps;
            if (shape.rotation != nullptr) {
                const auto table = rope_table::make(shape.rotation->frequencies(), reach, [](double angle) {
                    const auto at = portable_math::sincos(angle);
                    return turn{at.cosine, at.sine};
                });
                if (auto sent = turns.assign(*stream, table); !sent)
                    return sent;
                steps = {turns.data(), static_cast<std::uint32_t>(shape.rotation->half()), rope_table::rows(reach)};
            }
            attention.emplace(*device, attention_options{layout, shape.heads, shape.scale, steps});
            return {};
        }

        // Buffers for keys, values and queries of the batch; the output is copied back into the same pinned memory.
        [[nodiscard]] result<void> make_room() {
            const std::size_t numbers = count * (2 * side() + width());
            if (auto room = in.resize(numbers); !room)
                return room;
            if (auto room = out.resize(count * width()); !room)
                return room;
            if (numbers <= pinned_numbers)
                return {};
            auto memory = device->allocate_pinned(numbers * sizeof(float));
            if (!memory)
                return memory.error();
            device->deallocate_pinned(pinned);
            pinned = *memory;
            pinned_numbers = numbers;
            return {};
        }

        [[nodiscard]] float* staged() const noexcept { return reinterpret_cast<float*>(pinned); }
        [[nodiscard]] std::size_t side() const noexcept { return std::size_t{layout.shape.kv_heads} * Dim; }
        [[nodiscard]] std::size_t width() const noexcept { return std::size_t{heads} * Dim; }

        Device* device;
        std::uint32_t reach;
        std::optional<error> failed;
        const typename device_storage<Device>::state* storage = nullptr;
        page_layout layout = {};
        query_rows queries = {};
        std::uint32_t heads = 0;
        std::size_t count = 0; // rows of the batch
        std::vector<page_entry> cut;
        device_array<turn, Device> turns;
        device_array<row_slot, Device> slots;
        device_array<float, Device> in;  // keys and values (rows, kv_heads, head_dim), queries (rows, heads, head_dim)
        device_array<float, Device> out; // (rows, heads, head_dim)
        std::optional<paged_attention<Device, Format, Dim, Queries>> attention;
        std::byte* pinned = nullptr;
        std::size_t pinned_numbers = 0;
        std::optional<stream_id> stream;
    };

    std::unique_ptr<working> own_;
};

/// The reference transformer with its pages and attention on a device and its GEMMs on the host. A pipeline uses it
/// like a transformer:
///
///     device_model<cuda_device, row_format::bf16, 64, 4> on_device(model, device);
///     auto cache = make_cache(on_device.id(weights), on_device.shape(16), budget,
///                             device_rows{.format = row_format::bf16},
///                             device_storage<cuda_device>{.device = &device});
///     pipeline generate(cache, on_device, threads);
///
/// `Format` is that of the cache's `device_rows`, `Dim` the model's head_dim, `Queries` as in `paged_attention`.
template <device Device, row_format Format, unsigned Dim, unsigned Queries>
class device_model {
public:
    /// Requires: both outlive it; the model's head_dim is `Dim`.
    device_model(const transformer& model, Device& device) : model_(model), device_(device) {
        expects(model.config().head_dim == Dim, "the model's head_dim is the one that its attention was made for");
    }

    [[nodiscard]] const model_config& config() const noexcept { return model_.config(); }
    [[nodiscard]] std::span<const layer_id> layers() const noexcept { return model_.layers(); }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return model_.vocabulary(); }
    [[nodiscard]] std::size_t max_positions() const noexcept { return model_.max_positions(); }
    [[nodiscard]] page_shape shape(std::uint32_t tokens) const { return model_.shape(tokens); }
    /// As the transformer's identity. The cache adds that its rows come from a device.
    [[nodiscard]] identity id(digest weights) const { return model_.id(weights); }

    template <class Lease>
    [[nodiscard]] auto make_forward_pass(thread_pool& threads) const {
        using attention = device_attention<Lease, Device, Format, Dim, Queries>;
        return model_.template make_forward_pass<Lease>(threads, attention(device_, model_.max_positions()));
    }

private:
    const transformer& model_;
    Device& device_;
};

}}} // namespace kvcache::cuda
