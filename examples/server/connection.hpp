// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace server {

/// A client's connection, for cpp-httplib. A wait ends when data arrives, the time is over, or the server ends. For
/// one thread.
class connection : public httplib::Stream {
public:
    /// The maximum time a client may send nothing within a request, and may accept nothing.
    struct patience {
        std::chrono::seconds read = {}, write = {};
    };

    /// Takes over an open socket. `end` becomes readable when the server ends.
    connection(int open, int end, patience with) : socket_(open), end_(end), with_(with) {
        here_ = this;
        begin_request();
    }
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection() override {
        here_ = nullptr;
        if (must_close_)
            drain();
        ::shutdown(socket_, SHUT_RDWR);
        ::close(socket_);
    }

    /// Begins to read a request. Its request line and headers have at most 64 KiB, and arrive within `patience::read`.
    void begin_request() {
        left_ = std::size_t{64} << 10;
        in_body_ = false;
        deadline_ = clock::now() + with_.read;
    }
    /// Begins to read its body, of at most `bytes`. It arrives within `patience::read` and a second for each 64 KiB.
    void begin_body(std::size_t bytes) {
        left_ = bytes;
        in_body_ = true;
        deadline_ = clock::now() + with_.read + std::chrono::seconds(bytes >> 16);
    }
    /// Returns whether the request was longer than allowed. It is not read any further.
    [[nodiscard]] bool exceeded() const noexcept { return exceeded_; }
    [[nodiscard]] bool in_body() const noexcept { return in_body_; }

    /// Closes the connection after the reply, because what follows on it may not be a request.
    void close_after_reply() noexcept { must_close_ = true; }
    [[nodiscard]] bool must_close() const noexcept { return must_close_; }

    /// Returns the connection of the request that this thread answers.
    [[nodiscard]] static connection* here() noexcept { return here_; }

    /// Waits for the next request of the client. Returns false if none arrives or the server ends.
    [[nodiscard]] bool next(std::chrono::seconds idle) const { return first_ < last_ || ready(POLLIN, idle); }

    /// Returns whether the client has closed its end of the connection.
    [[nodiscard]] bool closed() const {
        pollfd ask{.fd = socket_, .events = POLLRDHUP, .revents = 0};
        return ::poll(&ask, 1, 0) > 0 && (ask.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }

    [[nodiscard]] bool is_readable() const override {
        const auto left = std::chrono::ceil<std::chrono::seconds>(deadline_ - clock::now());
        return left.count() > 0 && next(std::min(with_.read, left));
    }
    [[nodiscard]] bool is_writable() const override {
        pollfd ask{.fd = socket_, .events = POLLOUT, .revents = 0}; // not end_: answers are sent to the end
        return waited(&ask, 1, with_.write) && (ask.revents & POLLOUT) != 0;
    }

    ssize_t read(char* to, std::size_t size) override {
        exceeded_ = exceeded_ || left_ == 0;
        if (exceeded_)
            return -1;
        if (first_ == last_) {
            if (!is_readable())
                return -1;
            const ssize_t got = again([&] { return ::recv(socket_, kept_.data(), kept_.size(), 0); });
            if (got <= 0)
                return got;
            first_ = 0;
            last_ = static_cast<std::size_t>(got);
        }
        size = std::min({size, last_ - first_, left_});
        left_ -= size;
        std::memcpy(to, kept_.data() + first_, size);
        first_ += size;
        return static_cast<ssize_t>(size);
    }
    ssize_t write(const char* from, std::size_t size) override {
        return is_writable() ? again([&] { return ::send(socket_, from, size, MSG_NOSIGNAL); }) : -1;
    }

    void get_remote_ip_and_port(std::string& ip, int& port) const override { name(::getpeername, ip, port); }
    void get_local_ip_and_port(std::string& ip, int& port) const override { name(::getsockname, ip, port); }
    [[nodiscard]] int socket() const override { return socket_; }

private:
    using clock = std::chrono::steady_clock;

    template <class Call>
    static ssize_t again(Call&& call) {
        ssize_t done = call();
        while (done < 0 && errno == EINTR)
            done = call();
        return done;
    }

    // Waits for an event within the time; signals do not interrupt it.
    [[nodiscard]] static bool waited(pollfd* asks, nfds_t count, std::chrono::seconds most) {
        const auto until = clock::now() + most;
        for (;;) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
            const int came = ::poll(asks, count, static_cast<int>(std::max<decltype(left)>(left, 0)));
            if (came >= 0 || errno != EINTR)
                return came > 0;
        }
    }

    [[nodiscard]] bool ready(short what, std::chrono::seconds most) const {
        std::array<pollfd, 2> asks{pollfd{.fd = socket_, .events = what, .revents = 0},
                                   pollfd{.fd = end_, .events = POLLIN, .revents = 0}};
        return waited(asks.data(), asks.size(), most) && asks[1].revents == 0;
    }

    // Reads what the client is still sending, within limits: closing a socket with unread data could destroy the reply
    // before the client has read it (RFC 9112, 9.6).
    void drain() {
        ::shutdown(socket_, SHUT_WR);
        const auto until = clock::now() + std::chrono::seconds(2);
        for (std::size_t bytes = 0; bytes < (std::size_t{64} << 20) && clock::now() < until;) {
            pollfd ask{.fd = socket_, .events = POLLIN, .revents = 0};
            if (!waited(&ask, 1, std::chrono::seconds(1)))
                return;
            const ssize_t got = again([&] { return ::recv(socket_, kept_.data(), kept_.size(), 0); });
            if (got <= 0)
                return;
            bytes += static_cast<std::size_t>(got);
        }
    }

    template <class Ask>
    void name(Ask&& ask, std::string& ip, int& port) const {
        sockaddr_storage at{};
        socklen_t size = sizeof at;
        auto* address = reinterpret_cast<sockaddr*>(&at);
        std::array<char, NI_MAXHOST> host{};
        std::array<char, NI_MAXSERV> service{};
        if (ask(socket_, address, &size) == 0 && ::getnameinfo(address, size, host.data(), host.size(), service.data(),
                                                               service.size(), NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
            ip = host.data();
            port = std::atoi(service.data());
        }
    }

    inline static thread_local connection* here_ = nullptr;

    int socket_;
    int end_;
    patience with_;
    std::size_t left_ = 0; // bytes that the request may still take
    clock::time_point deadline_ = {};
    bool exceeded_ = false, in_body_ = false, must_close_ = false;
    std::array<char, 4096> kept_; // bytes read but not yet consumed are from first_ to last_
    std::size_t first_ = 0, last_ = 0;
};

} // namespace server
