// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/system/system_error.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace server {

/// A client's connection, from which Boost.Beast reads requests, and to which it writes responses (a SyncReadStream and
/// SyncWriteStream). A wait ends when data arrives, the deadline of the request has passed, or the server ends. For one
/// thread, apart from waiting_since() and cut().
class connection {
public:
    using clock = std::chrono::steady_clock;
    using error_code = boost::system::error_code;

    /// The maximum time a client may send no request, may take to send the head of one, and may accept nothing.
    struct patience {
        std::chrono::seconds idle = {}, head = {}, write = {};
    };
    static constexpr std::size_t head_bytes = std::size_t{64} << 10; ///< Limit of a request line with its headers.

    /// Takes over an open socket. `end` becomes readable when the server ends.
    connection(int open, int end, patience with) : socket_(open), end_(end), with_(with) {}
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection() {
        ::shutdown(socket_, SHUT_RDWR);
        ::close(socket_);
    }

    /// Waits for the next request, whose head has the time and the bytes of a head. Returns false if none arrives or
    /// the server ends.
    [[nodiscard]] bool next() {
        waiting_since_ = clock::now().time_since_epoch().count();
        if (kept_.size() == 0 && !ready(clock::now() + with_.idle))
            return false;
        begin(head_bytes, with_.head);
        return true;
    }
    /// Begins to read the body of a request, of at most `bytes`. It has the time of a head, and a second more for each
    /// 64 KiB that arrive.
    void begin_body(std::size_t bytes) { begin(bytes, with_.head); }
    /// The request has been read, so that only the answer has to be waited for.
    void end_request() noexcept { waiting_since_ = not_waiting; }

    /// Closes the connection after the response, because what follows may not be a request.
    void close_after_response() noexcept { must_close_ = true; }
    [[nodiscard]] bool must_close() const noexcept { return must_close_; }

    /// After the last response: reads on for a moment, if the client may still be sending. Closing a socket with unread
    /// data could destroy the response before the client has read it (RFC 9112, 9.6).
    void finish() {
        if (must_close_)
            drain();
    }

    /// Returns whether the client has closed its end of the connection.
    [[nodiscard]] bool closed() const {
        pollfd ask{.fd = socket_, .events = POLLRDHUP, .revents = 0};
        return ::poll(&ask, 1, 0) > 0 && (ask.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }

    /// Returns whether the server ends.
    [[nodiscard]] bool ending() const {
        pollfd ask{.fd = end_, .events = POLLIN, .revents = 0};
        return ::poll(&ask, 1, 0) > 0;
    }

    /// Since when the client could have sent a request and has not; `not_waiting` if it has. From any thread.
    [[nodiscard]] std::int64_t waiting_since() const noexcept { return waiting_since_; }
    static constexpr std::int64_t not_waiting = INT64_MAX;
    /// Ends the connection at its next read or write. From any thread.
    void cut() noexcept { ::shutdown(socket_, SHUT_RDWR); }

    /// Bytes that were read and not yet consumed.
    [[nodiscard]] boost::beast::flat_buffer& kept() noexcept { return kept_; }

    /// Reads at least a byte. Errors: timed_out, after the deadline; message_size, after the last byte that the request
    /// may have; eof; operation_aborted, when the server ends.
    template <class Buffers>
    std::size_t read_some(const Buffers& to, error_code& fault) {
        gathered into(to, left_);
        fault = left_ == 0 ? boost::asio::error::message_size : !ready(deadline_) ? stopped() : error_code();
        if (fault || into.empty())
            return 0;
        const ssize_t got = again([&] { return ::recvmsg(socket_, &into.message, 0); });
        if (got <= 0)
            fault =
                got == 0 ? error_code(boost::asio::error::eof) : error_code(errno, boost::system::system_category());
        const auto bytes = static_cast<std::size_t>(std::max<ssize_t>(got, 0));
        left_ -= bytes;
        deadline_ += std::chrono::microseconds(bytes * 1'000'000 / 65536);
        return bytes;
    }
    /// Writes at least a byte. Errors: timed_out; those of send.
    template <class Buffers>
    std::size_t write_some(const Buffers& from, error_code& fault) {
        gathered bytes(from, SIZE_MAX);
        pollfd ask{.fd = socket_, .events = POLLOUT, .revents = 0}; // not end_: answers are sent to the end
        fault = waited(&ask, 1, clock::now() + with_.write) ? error_code() : boost::asio::error::timed_out;
        if (fault || bytes.empty())
            return 0;
        const ssize_t put = again([&] { return ::sendmsg(socket_, &bytes.message, MSG_NOSIGNAL); });
        if (put < 0)
            fault = error_code(errno, boost::system::system_category());
        return static_cast<std::size_t>(std::max<ssize_t>(put, 0));
    }
    template <class Buffers>
    std::size_t read_some(const Buffers& to) {
        return or_throw([&](error_code& fault) { return read_some(to, fault); });
    }
    template <class Buffers>
    std::size_t write_some(const Buffers& from) {
        return or_throw([&](error_code& fault) { return write_some(from, fault); });
    }

private:
    void begin(std::size_t bytes, std::chrono::seconds time) {
        left_ = bytes;
        deadline_ = clock::now() + time;
    }

    // The first buffers of a sequence, as one call of recvmsg or sendmsg takes them.
    struct gathered {
        template <class Buffers>
        gathered(const Buffers& all, std::size_t most) {
            for (auto at = boost::asio::buffer_sequence_begin(all);
                 at != boost::asio::buffer_sequence_end(all) && message.msg_iovlen < parts.size() && most > 0; ++at) {
                const auto each = *at;
                const std::size_t bytes = std::min(each.size(), most);
                if (bytes > 0)
                    parts[message.msg_iovlen++] = {.iov_base = const_cast<void*>(each.data()), .iov_len = bytes};
                most -= bytes;
            }
        }
        gathered(const gathered&) = delete;
        gathered& operator=(const gathered&) = delete;
        [[nodiscard]] bool empty() const noexcept { return message.msg_iovlen == 0; }

        std::array<iovec, 64> parts;
        msghdr message = [this] {
            msghdr made{};
            made.msg_iov = parts.data();
            return made;
        }();
    };

    template <class Call>
    static std::size_t or_throw(Call&& call) {
        error_code fault;
        const std::size_t done = call(fault);
        if (fault)
            throw boost::system::system_error(fault);
        return done;
    }

    template <class Call>
    static ssize_t again(Call&& call) {
        ssize_t done = call();
        while (done < 0 && errno == EINTR)
            done = call();
        return done;
    }

    // Waits for an event; signals do not interrupt it.
    [[nodiscard]] static bool waited(pollfd* asks, nfds_t count, clock::time_point until) {
        for (;;) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
            const int came = ::poll(asks, count, static_cast<int>(std::max<decltype(left)>(left, 0)));
            if (came >= 0 || errno != EINTR)
                return came > 0;
        }
    }

    [[nodiscard]] bool ready(clock::time_point until) const {
        std::array<pollfd, 2> asks{pollfd{.fd = socket_, .events = POLLIN, .revents = 0},
                                   pollfd{.fd = end_, .events = POLLIN, .revents = 0}};
        return waited(asks.data(), asks.size(), until) && asks[1].revents == 0;
    }
    [[nodiscard]] error_code stopped() const {
        return clock::now() < deadline_ ? boost::asio::error::operation_aborted : boost::asio::error::timed_out;
    }

    // Reads what the client is still sending, within limits.
    void drain() {
        waiting_since_ = clock::now().time_since_epoch().count();
        ::shutdown(socket_, SHUT_WR);
        std::array<char, 4096> unwanted;
        const auto until = clock::now() + std::chrono::seconds(2);
        for (std::size_t bytes = 0; bytes < (std::size_t{64} << 20);) {
            pollfd ask{.fd = socket_, .events = POLLIN, .revents = 0};
            if (!waited(&ask, 1, until))
                return;
            const ssize_t got = again([&] { return ::recv(socket_, unwanted.data(), unwanted.size(), 0); });
            if (got <= 0)
                return;
            bytes += static_cast<std::size_t>(got);
        }
    }

    int socket_;
    int end_;
    patience with_;
    boost::beast::flat_buffer kept_{head_bytes + 4096};
    std::size_t left_ = 0; // bytes that the request may still take
    clock::time_point deadline_ = {};
    std::atomic<std::int64_t> waiting_since_ = clock::now().time_since_epoch().count();
    bool must_close_ = false;
};

} // namespace server
