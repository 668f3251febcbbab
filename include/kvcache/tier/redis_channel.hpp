// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/redis_link.hpp>
#include <kvcache/tier/resp.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A connection with pipelined commands; replies are read in place.
class redis_channel {
public:
    redis_channel(redis_link link, const resp_limits& limits) : link_(std::move(link)), limits_(limits) {}

    /// The buffer for the text of the next command; see resp.hpp. send() sends it.
    [[nodiscard]] std::string& words() noexcept { return words_; }
    /// Appends bytes after the text so far, without a copy. They must stay valid until send().
    void append(std::span<const std::byte> bytes) { aside_.push_back({words_.size(), bytes}); }
    /// Counts one more expected reply.
    void expect() noexcept { ++expected_; }
    [[nodiscard]] std::size_t expected() const noexcept { return expected_; }

    /// Sends the commands written since the last call. Errors: io.
    [[nodiscard]] result<void> send(redis_deadline& patience) {
        const auto words = std::as_bytes(std::span(words_));
        std::size_t at = 0;
        for (const auto& [before, bytes] : aside_) {
            if (auto done = link_.send(words.subspan(at, before - at), patience); !done)
                return done;
            if (auto done = link_.send(bytes, patience); !done)
                return done;
            at = before;
        }
        if (auto done = link_.send(words.subspan(at), patience); !done)
            return done;
        words_.clear();
        aside_.clear();
        return {};
    }

    /// Returns the next reply, which is valid until the next call. Errors: io; malformed, if it is not a reply.
    [[nodiscard]] result<resp_value> reply(redis_deadline& patience) {
        for (;;) {
            resp_read read = read_resp({room_.get() + begin_, end_ - begin_}, limits_);
            if (read.now == resp_read::state::wrong)
                return error{error_code::malformed, "redis", "redis: what the server says is no reply"};
            if (read.now == resp_read::state::whole) {
                begin_ += read.used;
                if (--expected_ == 0 && begin_ < end_)
                    return error{error_code::malformed, "redis", "redis: the server says more than it was asked"};
                return std::move(read.value);
            }
            if (read.wanted > limits_.bytes + 2 * limits_.line)
                return error{error_code::malformed, "redis", "redis: the server says too much"};
            make_room(read.wanted);
            const std::size_t most = std::max(read.wanted - (end_ - begin_), std::size_t{64} << 10);
            const auto came = link_.receive({room_.get() + end_, std::min(size_ - end_, most)}, patience);
            if (!came)
                return came.error();
            end_ += *came;
        }
    }

    /// Sends one command and waits for its reply. Requires: no reply is expected.
    [[nodiscard]] result<resp_value> ask(std::initializer_list<std::string_view> arguments, redis_deadline& patience) {
        write_command(words_, arguments);
        expect();
        if (auto sent = send(patience); !sent)
            return sent.error();
        return reply(patience);
    }

private:
    // Makes room for `wanted` bytes from begin_ on, and one more.
    void make_room(std::size_t wanted) {
        if (begin_ == end_)
            begin_ = end_ = 0;
        if (begin_ + wanted < size_)
            return;
        const std::size_t have = end_ - begin_;
        if (wanted < size_) {
            std::memmove(room_.get(), room_.get() + begin_, have);
        } else {
            const std::size_t size = std::max({wanted + 1, size_ + size_ / 2, std::size_t{64} << 10});
            auto larger = std::make_unique_for_overwrite<std::byte[]>(size);
            if (have > 0)
                std::memcpy(larger.get(), room_.get() + begin_, have);
            room_ = std::move(larger);
            size_ = size;
        }
        begin_ = 0;
        end_ = have;
    }

    struct apart {
        std::size_t before; // offset in the text
        std::span<const std::byte> bytes;
    };

    redis_link link_;
    resp_limits limits_;
    std::string words_;
    std::vector<apart> aside_;
    std::size_t expected_ = 0;
    std::unique_ptr<std::byte[]> room_;
    std::size_t size_ = 0, begin_ = 0, end_ = 0;
};

}}} // namespace kvcache::tier
