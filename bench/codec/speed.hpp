// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/storage/heap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "../support/machine.hpp"

namespace bench {

/// The attention of one query token over `tokens` past tokens, in one layer and on one thread: head_dim 128, `group`
/// query heads per KV head.
template <class Policy>
class attended_past {
public:
    static constexpr std::uint32_t dim = 128, page_tokens = 64;

    attended_past(const Policy& policy, std::uint32_t kv_heads, std::uint32_t group, std::size_t tokens)
        : shape_{1, kv_heads, dim, page_tokens},
          state_(policy.open(shape_)),
          storage_(kvcache::storage::heap{}.open(tokens / page_tokens + 1, state_.page_bytes())),
          asks_{kv_heads * group, kv_heads, dim, 0.088f, nullptr},
          queries_(std::size_t{kv_heads} * group * dim),
          out_(queries_.size()),
          scratch_(dim, kvcache::attention_plan::capacity(group)),
          rows_(std::make_unique<kvcache::codec::residual_page>(shape_)) {
        // One page of random values, copied: the time of attention does not depend on the values.
        std::mt19937 dice(3);
        std::normal_distribution<float> normal;
        for (float& x : queries_)
            x = normal(dice);
        const std::size_t pages = tokens / page_tokens + 1; // the last page holds the query's own token
        for (std::size_t p = 0; p < pages; ++p) {
            const auto page = static_cast<kvcache::page_id>(p);
            if (!storage_.acquire(page))
                throw std::bad_alloc();
            if (p == 0)
                fill(storage_.bytes(page), dice);
            else
                std::ranges::copy(storage_.bytes(kvcache::page_id{0}), storage_.bytes(page).begin());
            table_.push_back({.page = page, .count = p + 1 == pages ? 1 : page_tokens});
        }
        exact_.assign(pages, nullptr);
        exact_.back() = rows_.get();
    }

    /// Runs the attention once. Returns seconds.
    [[nodiscard]] double operator()() {
        const std::size_t position = (table_.size() - 1) * page_tokens;
        const kvcache::query_rows asked{queries_.data(), nullptr, out_.data(), queries_.size(), queries_.size(),
                                        position,        1};
        const stopwatch watch;
        for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
            kvcache::paged_attention(asks_, kvcache::page_source(state_, storage_), {{table_, exact_}, asked},
                                     kvcache::layer_id{0}, kvcache::head_id{head}, scratch_);
        return watch.seconds();
    }

private:
    using state = decltype(std::declval<const Policy&>().open(kvcache::page_shape{}));

    void fill(std::span<std::byte> page, std::mt19937& dice) {
        std::normal_distribution<float> normal;
        std::vector<float> numbers(std::size_t{shape_.kv_heads} * dim);
        rows_->begin(0);
        for (std::uint32_t row = 0; row < page_tokens; ++row) {
            for (float& x : numbers)
                x = normal(dice);
            if constexpr (kvcache::page_writer<state>)
                rows_->write(state_, page, kvcache::layer_id{0}, row, numbers, numbers);
            else
                for (std::uint32_t head = 0; head < shape_.kv_heads; ++head)
                    state_.encode(page, {kvcache::layer_id{0}, kvcache::head_id{head}, row},
                                  std::span(numbers).subspan(head * dim, dim),
                                  std::span(numbers).subspan(head * dim, dim));
        }
    }

    kvcache::page_shape shape_;
    state state_;
    kvcache::storage::heap::state storage_;
    kvcache::attention_shape asks_;
    std::vector<float> queries_, out_;
    kvcache::attention_scratch scratch_;
    std::unique_ptr<kvcache::codec::residual_page> rows_;
    std::vector<kvcache::page_entry> table_;
    std::vector<const kvcache::codec::residual_page*> exact_;
};

} // namespace bench
