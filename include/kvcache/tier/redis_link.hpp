// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/redis_slots.hpp>
#include <kvcache/tier/redis_tls.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The deadline of a call to a server: a fixed time, extended for every byte transferred at the minimum throughput. A
/// server that sends slowly therefore cannot stall a call.
class redis_deadline {
public:
    using clock = std::chrono::steady_clock;

    redis_deadline(std::chrono::milliseconds longest, std::size_t slowest)
        : end_(clock::now() + longest), second_(static_cast<double>(std::max<std::size_t>(slowest, 1))) {}

    void moved(std::size_t bytes) {
        end_ += std::chrono::duration_cast<clock::duration>(
            std::chrono::duration<double>(static_cast<double>(bytes) / second_));
    }
    /// Excludes time that the server did not use.
    void rested(clock::duration time) { end_ += time; }

    [[nodiscard]] clock::time_point end() const noexcept { return end_; }
    /// Returns the remaining time for poll, rounded up; 0 after the deadline.
    [[nodiscard]] int milliseconds() const {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - clock::now()).count();
        return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
    }

private:
    clock::time_point end_;
    double second_; // bytes per second
};

/// A connection to a Redis server, with or without TLS. No call waits beyond its deadline.
class redis_link {
public:
    /// Opens a connection. Errors: io if the host is unknown, nothing listens there, or the deadline passes;
    /// unsupported if the TLS handshake finds no agreement.
    [[nodiscard]] static result<redis_link> open(const redis_address& to, const redis_security& how,
                                                 redis_deadline& patience) {
        addrinfo wanted{};
        wanted.ai_socktype = SOCK_STREAM;
        wanted.ai_flags = AI_ADDRCONFIG;
        addrinfo* found = nullptr;
        const std::string port = std::to_string(to.port);
        if (const int code = ::getaddrinfo(to.host.c_str(), port.c_str(), &wanted, &found); code != 0)
            return error{error_code::io, "redis", "redis: " + to.host + ": " + ::gai_strerror(code)};
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
        error last = failure(to.host, EADDRNOTAVAIL);
        for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
            redis_link made(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
            if (made.socket_ < 0) {
                last = failure(to.host, errno);
                continue;
            }
            if (const int code = made.connect(*one, patience); code != 0) {
                last = failure(to.host + ":" + port, code);
                continue;
            }
            if (how.on)
                if (auto agreed = made.secure(how, to.host, patience); !agreed)
                    return agreed.error();
            return made;
        }
        return last;
    }

    redis_link(redis_link&& other) noexcept : socket_(std::exchange(other.socket_, -1)), tls_(std::move(other.tls_)) {}
    redis_link& operator=(redis_link&& other) noexcept {
        std::swap(socket_, other.socket_);
        std::swap(tls_, other.tls_);
        return *this;
    }
    ~redis_link() {
        if (socket_ >= 0)
            ::close(socket_);
    }

    /// Sends all bytes. Errors: io.
    [[nodiscard]] result<void> send(std::span<const std::byte> bytes, redis_deadline& patience) {
        if (!tls_)
            return push(bytes, patience);
        while (!bytes.empty()) { // in pieces, so that encrypted bytes do not accumulate
            const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), 64 << 10));
            if (auto done = tls_->write(piece); !done)
                return done;
            if (auto done = drain(patience); !done)
                return done;
            bytes = bytes.subspan(piece.size());
        }
        return {};
    }

    /// Waits for bytes. Returns the number received, at least one. Errors: io, also if the server has closed the
    /// connection.
    [[nodiscard]] result<std::size_t> receive(std::span<std::byte> to, redis_deadline& patience) {
        if (!tls_)
            return pull(to, patience);
        for (;;) {
            const auto read = tls_->read(to);
            if (!read || *read > 0)
                return read;
            if (auto came = receive_tls(patience); !came)
                return came.error();
        }
    }

private:
    explicit redis_link(int socket) : socket_(socket) {}

    [[nodiscard]] static error failure(const std::string& where, int code) {
        return {error_code::io, "redis", "redis: " + where + ": " + std::strerror(code)};
    }

    // Returns 0, or errno.
    [[nodiscard]] int connect(const addrinfo& to, redis_deadline& patience) {
        const int yes = 1;
        ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (::connect(socket_, to.ai_addr, to.ai_addrlen) == 0)
            return 0;
        if (errno != EINPROGRESS)
            return errno;
        if (!ready(POLLOUT, patience))
            return ETIMEDOUT;
        int code = 0;
        socklen_t size = sizeof code;
        return ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &code, &size) == 0 ? code : errno;
    }

    [[nodiscard]] bool ready(short what, redis_deadline& patience) const {
        for (;;) {
            pollfd one{socket_, what, 0};
            const int found = ::poll(&one, 1, patience.milliseconds());
            if (found >= 0 || errno != EINTR)
                return found > 0;
        }
    }

    [[nodiscard]] result<void> push(std::span<const std::byte> bytes, redis_deadline& patience) {
        while (!bytes.empty()) {
            const auto sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent > 0) {
                patience.moved(static_cast<std::size_t>(sent));
                bytes = bytes.subspan(static_cast<std::size_t>(sent));
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                if (!ready(POLLOUT, patience))
                    return failure("sending", ETIMEDOUT);
            } else if (errno != EINTR) {
                return failure("sending", errno);
            }
        }
        return {};
    }

    [[nodiscard]] result<std::size_t> pull(std::span<std::byte> to, redis_deadline& patience) {
        for (;;) {
            const auto came = ::recv(socket_, to.data(), to.size(), 0);
            if (came > 0) {
                patience.moved(static_cast<std::size_t>(came));
                return static_cast<std::size_t>(came);
            }
            if (came == 0)
                return error{error_code::io, "redis", "redis: the server has closed the connection"};
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                if (!ready(POLLIN, patience))
                    return failure("receiving", ETIMEDOUT);
            } else if (errno != EINTR) {
                return failure("receiving", errno);
            }
        }
    }

    [[nodiscard]] result<void> secure(const redis_security& how, const std::string& host, redis_deadline& patience) {
        auto made = redis_tls::open(how, host);
        if (!made)
            return made.error();
        tls_.emplace(std::move(*made));
        for (;;) {
            const auto over = tls_->shake();
            if (auto gone = drain(patience); !gone) // sends the TLS alert too if the step failed
                return gone;
            if (!over)
                return over.error();
            if (*over)
                return {};
            if (auto came = receive_tls(patience); !came)
                return error{came.error().code, "redis", came.error().message + ", in the TLS handshake"};
        }
    }

    [[nodiscard]] result<void> drain(redis_deadline& patience) {
        std::array<std::byte, 16384> piece;
        while (const std::size_t size = tls_->take_out(piece))
            if (auto gone = push(std::span(piece).first(size), patience); !gone)
                return gone;
        return {};
    }
    [[nodiscard]] result<void> receive_tls(redis_deadline& patience) {
        std::array<std::byte, 16384> piece;
        const auto came = pull(piece, patience);
        if (!came)
            return came.error();
        if (!tls_->put_in(std::span(piece).first(*came)))
            return error{error_code::out_of_memory, "redis", "redis: there is no memory for what came"};
        return {};
    }

    int socket_ = -1;
    std::optional<redis_tls> tls_;
};

}}} // namespace kvcache::tier
