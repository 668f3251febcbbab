// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The block tables of a batch as compressed rows, as FlashInfer's and vLLM's paged attention kernels read them
/// (FlashInfer: paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len). The arrays keep their memory when cleared.
/// They are copies: no sequence has to outlive them. One thread at a time changes them.
class block_tables {
public:
    /// `page_tokens`: the tokens of a page.
    explicit block_tables(std::size_t page_tokens) : page_tokens_(page_tokens) {
        require(page_tokens > 0, "a page has tokens");
    }

    /// Appends a sequence, from its page table: sequence.table(), or lease.pages().table with the reserved rows.
    /// Requires: every page but the last is used from its first row to its last, as in exact sequences. Throws:
    /// bad_alloc. Cost: O(pages).
    void append(std::span<const page_entry> table) {
        for (std::size_t i = 0; i < table.size(); ++i)
            require(table[i].first == 0 && table[i].base == 0 && table[i].count <= page_tokens_ &&
                        (i + 1 == table.size() || table[i].count == page_tokens_),
                    "a block table has full pages, but for the last one");
        for (const page_entry& entry : table)
            indices_.push_back(static_cast<std::int32_t>(index_of(entry.page)));
        indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
        last_page_len_.push_back(table.empty() ? 0 : static_cast<std::int32_t>(table.back().count));
    }

    void clear() noexcept {
        indptr_.resize(1);
        indices_.clear();
        last_page_len_.clear();
    }

    /// Where the pages of each sequence begin in indices(), and the number of all. (sequences + 1)
    [[nodiscard]] std::span<const std::int32_t> indptr() const noexcept { return indptr_; }
    /// The pages of all sequences, in order.
    [[nodiscard]] std::span<const std::int32_t> indices() const noexcept { return indices_; }
    /// The rows in use in the last page of each sequence; 0 for a sequence without rows. (sequences)
    [[nodiscard]] std::span<const std::int32_t> last_page_len() const noexcept { return last_page_len_; }
    /// The pages of one sequence.
    [[nodiscard]] std::span<const std::int32_t> blocks(std::size_t sequence) const {
        require(sequence + 1 < indptr_.size(), "a sequence whose blocks are asked for was appended");
        const auto begin = static_cast<std::size_t>(indptr_[sequence]);
        return indices().subspan(begin, static_cast<std::size_t>(indptr_[sequence + 1]) - begin);
    }

private:
    std::size_t page_tokens_;
    std::vector<std::int32_t> indptr_ = {0};
    std::vector<std::int32_t> indices_;
    std::vector<std::int32_t> last_page_len_;
};

}} // namespace kvcache
