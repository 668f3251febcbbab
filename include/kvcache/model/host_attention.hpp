// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Which rows of a slice need logits.
enum class logits_mode { none, last, all };

/// A copy of the states after some rows of a slice.
struct state_copy {
    std::size_t rows = 0;
    std::span<std::byte> to = {};
};

/// The states of all recurrent layers of a sequence, one layer after the other: before the rows of a slice, after them,
/// and where else they are wanted, in ascending order of rows. Nothing before stands for zeros.
struct slice_states {
    std::span<const std::byte> before = {}; ///< May be `after`.
    std::span<std::byte> after = {};
    std::span<const state_copy> copies = {};
};

/// Rows of one sequence in a batch: tokens at the lease's rows [row, row + tokens.size()), or at `rows`.
template <class Lease>
struct batch_slice {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_mode wanted = logits_mode::last;
    std::span<const std::size_t> rows = {};   ///< Rows of the lease, ascending, if they are not consecutive.
    std::span<const std::size_t> limits = {}; ///< Last position that each token sees; empty: its own position.
    slice_states states = {};                 ///< Of a model with recurrent layers; the rows are consecutive.

    /// Row of the lease for token `i`.
    [[nodiscard]] std::size_t row_of(std::size_t i) const noexcept { return rows.empty() ? row + i : rows[i]; }
    /// Position of token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row_of(i); }
    /// Last position that token `i` sees.
    [[nodiscard]] std::size_t limit(std::size_t i) const { return limits.empty() ? position(i) : limits[i]; }

    /// Number of rows that need logits; they are the last ones.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_mode::all ? tokens.size() : wanted == logits_mode::last && !tokens.empty() ? 1 : 0;
    }
};

/// How layers that attend alike do so, and the rows of a batch for them.
struct attention_kind {
    attention_shape shape = {};
    /// Factor of the rotated dimensions of queries and keys: of a RoPE that scales what it rotates, and rotates a part.
    float rotation_scale = 1.0F;
    std::size_t group = 0;              ///< The layer group that has their keys and values, in a cache of layer groups.
    const float* group_sinks = nullptr; ///< Sinks of that group's layers, where shape.sinks are those of all layers.
    query_rows rows = {};               ///< All rows of the batch together; its position and row count are ignored.
};

/// A layer of a forward pass: its number where its keys and values are, which is within its group in a cache of layer
/// groups, and the kind of layers that it attends like.
struct attended_layer {
    layer_id layer = {};
    std::size_t kind = 0;
    std::size_t group = 0;
    bool recurrent = false; ///< It does not attend: `layer` counts the recurrent layers.
    bool writes = true;     ///< The keys and values are its own; else those of an earlier layer.
};

/// A lease of a cache of layer groups that owns their memory.
template <class Lease>
concept grouped_lease = requires(const Lease lease, std::vector<page_entry>& entries) {
    lease.pages(std::size_t{}, entries);
};

/// Attention of a forward pass on the CPU, planned once for all layers of a kind.
template <class Lease>
class host_attention {
public:
    /// Plans the attention of a batch, for each kind of layers. Requires: the leases are of one cache; they and the
    /// memory that the rows point to stay unchanged while it runs. Planning again reuses memory.
    void plan(std::span<const attention_kind> kinds, std::span<const batch_slice<Lease>> batch,
              const thread_pool& threads) {
        expects(ranges::all_of(
                    batch, [&](const auto& part) { return &part.lease->storage() == &batch.front().lease->storage(); }),
                "the leases of a batch are of one cache");
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that pointers into it stay valid
        for (const auto& part : batch)
            for (std::size_t i = 0; i < part.rows.size(); ++i)
                limits_.push_back(part.limit(i));
        kinds_.resize(kinds.size());
        for (std::size_t i = 0; i < kinds.size(); ++i)
            kinds_[i].plan(kinds[i], batch, limits_, threads);
    }

    /// Writes the keys and values of a lease's row `to`, which is row `row` of the batch. Thread-safe.
    void write(const Lease& lease, std::size_t to, std::size_t /*row*/, const attended_layer& at,
               std::span<const float> keys, std::span<const float> values) const {
        if constexpr (grouped_lease<Lease>)
            lease.write(at.group, at.layer, to, keys, values);
        else
            lease.write(at.layer, to, keys, values);
    }

    /// Computes all rows in one layer. Requires: their keys and values are in the leases.
    void run(const attended_layer& at, thread_pool& threads) { kinds_[at.kind].run(at.layer, threads); }

private:
    template <class Codec, class Storage>
    static batch_attention<Codec, Storage> over(const page_source<Codec, Storage>&);
    using paged = decltype(over(page_source(std::declval<const Lease&>())));

    // The attention over blocks of groups that have no pages of the cache, which are of another type with some codecs.
    template <class Of>
    struct blocks_of {
        using type = paged;
    };
    template <grouped_lease Of>
    struct blocks_of<Of> {
        using memory = std::remove_cvref_t<decltype(std::declval<const Of&>().block_memory())>;
        using type = batch_attention<typename memory::codec_type, typename memory::storage_type>;
    };
    using blocked = typename blocks_of<Lease>::type;

    class planned {
    public:
        void plan(const attention_kind& kind, std::span<const batch_slice<Lease>> batch,
                  std::span<const std::size_t> limits, const thread_pool& threads) {
            parts_.clear();
            entries_.resize(std::max(entries_.size(), batch.size()));
            query_rows queries = kind.rows;
            std::size_t scattered = 0;
            for (std::size_t i = 0; i < batch.size(); ++i) {
                const auto& part = batch[i];
                queries.position = part.position(0);
                queries.rows = part.tokens.size();
                queries.positions = part.rows.empty() ? nullptr : limits.data() + scattered;
                scattered += part.rows.size();
                parts_.push_back({pages_of(*part.lease, kind.group, entries_[i]), queries});
                queries.data += queries.rows * queries.stride;
                if (queries.rotations != nullptr)
                    queries.rotations += queries.rows * kind.shape.head_dim;
                queries.out += queries.rows * queries.out_stride;
            }
            if constexpr (grouped_lease<Lease>) {
                if (batch.empty())
                    return paged_.plan(kind.shape, {}, parts_, threads);
                batch.front().lease->with_source(kind.group, [&](const auto& codec, const auto& storage) {
                    plan_over(kind.shape, page_source(codec, storage), threads);
                });
            } else {
                using source = decltype(page_source(std::declval<const Lease&>()));
                paged_.plan(kind.shape, batch.empty() ? source() : source(*batch.front().lease), parts_, threads);
            }
        }
        void run(layer_id layer, thread_pool& threads) {
            if (over_blocks_)
                blocked_.run(layer, threads);
            else
                paged_.run(layer, threads);
        }

    private:
        [[nodiscard]] static sequence_pages pages_of(const Lease& lease, std::size_t group,
                                                     std::vector<page_entry>& entries) {
            if constexpr (grouped_lease<Lease>)
                return lease.pages(group, entries);
            else
                return lease.pages();
        }
        template <class Source>
        void plan_over(const attention_shape& shape, const Source& source, const thread_pool& threads) {
            over_blocks_ = !requires {
                paged_.plan(shape, source, parts_, threads);
            };
            if constexpr (requires { paged_.plan(shape, source, parts_, threads); })
                paged_.plan(shape, source, parts_, threads);
            else
                blocked_.plan(shape, source, parts_, threads);
        }

        std::vector<attention_part> parts_;
        std::vector<std::vector<page_entry>> entries_; // by part: the blocks of a group
        paged paged_;
        blocked blocked_;
        bool over_blocks_ = false;
    };

    std::vector<planned> kinds_;
    std::vector<std::size_t> limits_; // last visible positions, for slices whose rows are not consecutive
};

}} // namespace kvcache
