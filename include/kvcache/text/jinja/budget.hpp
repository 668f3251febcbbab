// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/text/jinja/failure.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stop_token>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// The work and the memory that one rendering may use. Every operation pays before it starts, in proportion to what it
/// reads and makes, so a hostile template ends in an error after bounded time and memory. A unit of work takes at most
/// about a nanosecond. Memory counts when it is allocated, and is not given back when it is freed.
template <class...>
class basic_budget {
public:
    /// A budget for a rendering of messages of this size: the bytes of their texts, and `per_value` for each value.
    /// Once `stop` is requested, the rendering is given up within a millisecond of work.
    explicit basic_budget(std::size_t input, std::stop_token stop = {})
        : stop_(std::move(stop)),
          work_(within(base_work, work_per_byte, input)),
          bytes_(within(base_bytes, bytes_per_byte, input)),
          next_look_(work_),
          most_work_(work_),
          most_bytes_(bytes_) {}

    // The templates of real models use at most a third of the memory and a sixth of the work, for 20,000 messages of 20
    // bytes and for 10 messages of a million bytes.
    static constexpr std::size_t base_work = 500'000'000;
    static constexpr std::size_t work_per_byte = 64;
    static constexpr std::size_t base_bytes = std::size_t{128} << 20;
    static constexpr std::size_t bytes_per_byte = 32;
    /// The size of a value in addition to the bytes of its text.
    static constexpr std::size_t per_value = 64;

    /// Pays for work. Throws: failure, also when the rendering is stopped.
    void work(std::size_t units) {
        if (units > work_)
            refuse({"it takes more than ", std::to_string(most_work_), " units of work"});
        work_ -= units;
        if (work_ <= next_look_) {
            constexpr std::size_t step = 1'000'000;
            next_look_ = work_ - std::min(work_, step);
            if (stop_.stop_requested())
                give_up();
        }
    }
    /// Pays for memory, and for the work of filling it. Throws: failure.
    void memory(std::size_t bytes) {
        work(bytes);
        if (bytes > bytes_)
            refuse({"it makes more than ", std::to_string(most_bytes_), " bytes of text and lists"});
        bytes_ -= bytes;
    }
    /// Pays for a text with its marks.
    void text(std::size_t bytes) { memory(per_value + 2 * bytes); }
    /// Pays for a list.
    void items(std::size_t count) { memory(per_value + 32 * count); }
    /// Pays for a search for `part` bytes in `whole` bytes, which may compare all of them at every position.
    void search(std::size_t whole, std::size_t part) { work(product(whole, 2 + part / 8)); }

private:
    [[nodiscard]] static std::size_t product(std::size_t a, std::size_t b) noexcept {
        std::size_t made = 0;
        return __builtin_mul_overflow(a, b, &made) ? std::numeric_limits<std::size_t>::max() : made;
    }
    [[nodiscard]] static std::size_t within(std::size_t base, std::size_t factor, std::size_t input) noexcept {
        std::size_t made = 0;
        return __builtin_add_overflow(base, product(factor, input), &made) ? std::numeric_limits<std::size_t>::max()
                                                                           : made;
    }

    std::stop_token stop_;
    std::size_t work_;
    std::size_t bytes_;
    std::size_t next_look_; // work that is left when `stop_` is looked at again
    std::size_t most_work_;
    std::size_t most_bytes_;
};
using budget = basic_budget<>;

}}} // namespace kvcache::text::jinja
