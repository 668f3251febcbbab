// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../support/guarded.hpp"
#include "client_threads.hpp"
#include "connection.hpp"
#include "listener.hpp"
#include "serve_client.hpp"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace server {

/// An HTTP/1.1 server. Each connection has a thread. When all are taken, a new connection takes the place of the one
/// that has sent no request for the longest time. If all others are being answered, it is one of a few in reserve, for
/// the requests that `urgent` names; others get 503.
class web {
public:
    struct limits {
        std::size_t connections = 2048;
        std::size_t reserve = 8;
        connection::patience patience = {};
    };

    /// Throws: system_error.
    web(limits most, request_rules with, std::vector<std::string> urgent)
        : most_(most), with_(std::move(with)), ends_(::eventfd(0, EFD_CLOEXEC)) {
        if (ends_ < 0)
            throw std::system_error(errno, std::generic_category(), "eventfd");
        urgent_ = {.body_bytes = with_.body_bytes,
                   .bodies = with_.bodies,
                   .guard =
                       [this, paths = std::move(urgent)](const http_request& in) {
                           if (auto refused = with_.guard(in))
                               return refused;
                           if (std::ranges::find(paths, in.path()) == paths.end())
                               return std::optional<problem>{
                                   {503, "overloaded_error", "connections", "all connections are taken"}};
                           in.client.close_after_response();
                           return std::optional<problem>();
                       },
                   .finish = with_.finish,
                   .routes = with_.routes};
    }
    web(const web&) = delete;
    web& operator=(const web&) = delete;
    ~web() { ::close(ends_); }

    /// Accepts connections until end() is called, and returns when all of them have ended.
    void serve(const listener& at) {
        client_threads threads(most_.connections + most_.reserve);
        while (const auto open = accepted(at.socket()))
            attend(threads, *open);
    }

    /// Accepts no further connections and waits for no client; running answers are sent. From any thread.
    void end() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(ends_, &one, sizeof one);
    }

private:
    // Waits for a connection. Returns none when the server ends.
    [[nodiscard]] std::optional<int> accepted(int from) const {
        for (;;) {
            pollfd asks[]{{.fd = from, .events = POLLIN, .revents = 0}, {.fd = ends_, .events = POLLIN, .revents = 0}};
            if (::poll(asks, 2, -1) < 0 && errno != EINTR)
                return std::nullopt;
            if (asks[1].revents != 0)
                return std::nullopt;
            if (const int open = ::accept4(from, nullptr, nullptr, SOCK_CLOEXEC); open >= 0)
                return open;
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause(); // until a connection ends
        }
    }

    // Gives a new connection a thread; waits if there is no place even in reserve.
    void attend(client_threads& threads, int open) {
        const int yes = 1;
        (void)::setsockopt(open, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        for (;;) {
            std::unique_lock guard(lock_);
            if (ordinary_.size() >= most_.connections)
                cut_longest_waiting();
            const bool urgent = ordinary_.size() >= most_.connections;
            if (urgent && in_reserve_ >= most_.reserve) {
                guard.unlock();
                if (!pause()) {
                    ::close(open);
                    return;
                }
                continue;
            }
            using std::chrono::seconds;
            const connection::patience brief{.idle = seconds(2), .head = seconds(2), .write = seconds(2)};
            auto client = std::make_shared<connection>(open, ends_, urgent ? brief : most_.patience);
            if (urgent)
                ++in_reserve_;
            else
                ordinary_.push_back(client.get());
            guard.unlock();
            threads.run([this, client = std::move(client), urgent] {
                (void)support::guarded("server", [&] { // an exception ends its connection, not the server
                    serve_client(*client, urgent ? urgent_ : with_);
                    return 0;
                });
                const std::lock_guard again(lock_);
                if (urgent)
                    --in_reserve_;
                else
                    std::erase(ordinary_, client.get()); // gone already if it was cut
            });
            return;
        }
    }

    // Waits a moment for a place. Returns false when the server ends.
    bool pause() const {
        pollfd ask{.fd = ends_, .events = POLLIN, .revents = 0};
        return ::poll(&ask, 1, 10) <= 0;
    }

    // Requires: the lock is held.
    void cut_longest_waiting() {
        const auto longest =
            std::ranges::min_element(ordinary_, {}, [](const connection* each) { return each->waiting_since(); });
        if (longest == ordinary_.end() || (*longest)->waiting_since() == connection::not_waiting)
            return;
        (*longest)->cut();
        ordinary_.erase(longest);
    }

    limits most_;
    request_rules with_, urgent_;
    int ends_; // readable when the server ends
    std::mutex lock_;
    std::vector<connection*> ordinary_; // those that may be cut
    std::size_t in_reserve_ = 0;
};

} // namespace server
