// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/paged_attention.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/team.hpp>
#include <kvcache/model/batch_part.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache {

/// The attention of a batch, dealt to the threads once for all layers.
template <class Lease>
class attention_jobs {
public:
    /// Requires: the batch outlives the calls of `attend`.
    void deal(const attention_shape& shape, std::span<const batch_part<Lease>> batch) {
        constexpr std::size_t rows_a_job = 16; // enough to share tiles, few enough to balance two threads
        shape_ = shape;
        batch_ = batch;
        jobs_.clear();
        row_of_part_.clear();
        work_ = 0;
        std::size_t row = 0;
        for (std::size_t p = 0; p < batch.size(); ++p) {
            const std::size_t n = batch[p].tokens.size();
            row_of_part_.push_back(row);
            row += n;
            work_ += n * (batch[p].position(0) + n) * shape.heads * shape.head_dim;
            for (std::size_t first = 0; first < n; first += rows_a_job)
                for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                    jobs_.push_back({p, head_id{head}, first, std::min(first + rows_a_job, n)});
        }
    }

    /// All rows of the batch, side by side in `rows`, whose position and number of rows are not read.
    void attend(layer_id layer, const query_rows& rows, team& threads) {
        threads.share(jobs_.size(), work_, [&](std::size_t begin, std::size_t end) {
            for (std::size_t j = begin; j < end; ++j) {
                const job& one = jobs_[j];
                const auto& part = batch_[one.part];
                const std::size_t start = row_of_part_[one.part];
                query_rows asked = rows;
                asked.queries += start * rows.stride;
                asked.rotations += start * shape_.head_dim;
                asked.out += start * rows.out_stride;
                asked.position = part.position(0);
                asked.rows = part.tokens.size();
                kvcache::attend(shape_, part.lease->pages(), layer, one.head, asked, one.first, one.last);
            }
        });
    }

private:
    // Rows of one part on one key and value head, for one thread.
    struct job {
        std::size_t part = 0;
        head_id head = {};
        std::size_t first = 0;
        std::size_t last = 0;
    };

    attention_shape shape_;
    std::span<const batch_part<Lease>> batch_;
    std::vector<std::size_t> row_of_part_;
    std::vector<job> jobs_;
    std::size_t work_ = 0; // multiply-adds, about
};

} // namespace kvcache
