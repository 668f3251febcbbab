// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
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
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace server {

/// An HTTP/1.1 server. Each connection has a thread. When all places are taken, or the system has no descriptor or no
/// thread for one more, a new connection takes the place of the one that has sent no request for the longest time. If
/// all others are being answered, it is one of a few in reserve, for the requests that `urgent` names; others get 503.
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
        ordinary_.reserve(most_.connections);
        spare_.reserve(most_.reserve);
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
    ~web() {
        ::close(ends_);
        for (const int each : spare_)
            ::close(each);
    }

    /// Accepts connections until end() is called, and returns when all of them have ended. Throws: system_error, if
    /// there are no threads for the reserve.
    void serve(const listener& at) {
        client_threads threads;
        if (threads.grow(most_.reserve + 1) <= most_.reserve)
            throw std::system_error(EAGAIN, std::generic_category(), "no threads for connections");
        while (const auto next = accepted(at.socket()))
            attend(threads, *next);
    }

    /// Accepts no further connections and waits for no client; running answers are sent. From any thread.
    void end() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(ends_, &one, sizeof one);
    }

private:
    // A connection that has arrived.
    struct arrival {
        int socket = -1;
        bool in_reserve = false; // has a descriptor of the reserve
    };

    // Waits for a connection. Returns none when the server ends.
    [[nodiscard]] std::optional<arrival> accepted(int from) {
        for (;;) {
            pollfd asks[]{{.fd = from, .events = POLLIN, .revents = 0}, {.fd = ends_, .events = POLLIN, .revents = 0}};
            if (::poll(asks, 2, -1) < 0 && errno != EINTR)
                return std::nullopt;
            if (asks[1].revents != 0)
                return std::nullopt;
            keep_spares();
            if (const int open = ::accept4(from, nullptr, nullptr, SOCK_CLOEXEC); open >= 0)
                return arrival{.socket = open, .in_reserve = false};
            if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
                continue;
            if (const int open = accepted_without_room(from); open >= 0)
                return arrival{.socket = open, .in_reserve = true};
            if (!pause()) // until a connection ends
                return std::nullopt;
        }
    }

    // The system has no descriptor for a connection: cuts the longest waiting one, unless one is ending already. If all
    // are being answered, accepts it with a spare descriptor. Returns -1 if there is nothing yet.
    [[nodiscard]] int accepted_without_room(int from) {
        {
            const std::lock_guard guard(lock_);
            if (closing_ > 0 || cut_longest_waiting() || in_reserve_ >= most_.reserve || spare_.empty())
                return -1;
        }
        ::close(spare_.back());
        spare_.pop_back();
        return ::accept4(from, nullptr, nullptr, SOCK_CLOEXEC);
    }

    // Keeps a descriptor for each connection in reserve, as far as there are any.
    void keep_spares() {
        while (spare_.size() < most_.reserve) {
            const int more = ::fcntl(ends_, F_DUPFD_CLOEXEC, 0);
            if (more < 0)
                return;
            spare_.push_back(more);
        }
    }

    // Gives a new connection a thread; waits if there is no place even in reserve.
    void attend(client_threads& threads, arrival next) {
        const int yes = 1;
        (void)::setsockopt(next.socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        for (;;) {
            std::unique_lock guard(lock_);
            const std::size_t places = places_for_one_more(threads);
            if (ordinary_.size() >= places && !next.in_reserve)
                (void)cut_longest_waiting();
            const bool urgent = next.in_reserve || ordinary_.size() >= places;
            if (urgent && in_reserve_ >= most_.reserve) {
                guard.unlock();
                if (!pause()) {
                    ::close(next.socket);
                    return;
                }
                continue;
            }
            auto client = connection_on(next.socket, urgent);
            if (client == nullptr) // no memory: the client may try again
                return;
            if (urgent)
                ++in_reserve_;
            else
                ordinary_.push_back(client.get());
            guard.unlock();
            try {
                threads.run([this, client, urgent]() mutable {
                    (void)support::guarded("server", [&] { // an exception ends its connection, not the server
                        serve_client(*client, urgent ? urgent_ : with_);
                        return 0;
                    });
                    ended(std::move(client), urgent);
                });
            } catch (const std::bad_alloc&) {
                ended(std::move(client), urgent);
            }
            return;
        }
    }

    // A place for each ordinary connection that there is a thread for. Requires: the lock is held.
    [[nodiscard]] std::size_t places_for_one_more(client_threads& threads) {
        const std::size_t wanted = std::min(ordinary_.size() + 1, most_.connections);
        const std::size_t places = threads.grow(wanted + most_.reserve) - most_.reserve;
        if (places < wanted && !std::exchange(told_, true))
            std::fprintf(stderr,
                         "server: no more threads can be started; %zu connections can be open at the same time\n",
                         places);
        return std::min(places, most_.connections);
    }

    // Takes over a socket; none, and it is closed, if there is no memory.
    [[nodiscard]] std::shared_ptr<connection> connection_on(int socket, bool urgent) const {
        using std::chrono::seconds;
        const connection::patience brief{.idle = seconds(2), .head = seconds(2), .write = seconds(2)};
        try {
            return std::make_shared<connection>(socket, ends_, urgent ? brief : most_.patience);
        } catch (const std::bad_alloc&) {
            ::close(socket);
            return nullptr;
        }
    }

    // Closes a connection that has ended, and frees its place.
    void ended(std::shared_ptr<connection> client, bool urgent) {
        bool was_cut = false;
        if (!urgent) {
            const std::lock_guard guard(lock_);
            was_cut = std::erase(ordinary_, client.get()) == 0;
        }
        client.reset(); // its descriptor is free before the place is
        const std::lock_guard guard(lock_);
        in_reserve_ -= urgent ? 1 : 0;
        closing_ -= was_cut ? 1 : 0;
    }

    // Waits a moment for a place. Returns false when the server ends.
    bool pause() const {
        pollfd ask{.fd = ends_, .events = POLLIN, .revents = 0};
        return ::poll(&ask, 1, 10) <= 0;
    }

    // Returns false if all connections are being answered. Requires: the lock is held.
    [[nodiscard]] bool cut_longest_waiting() {
        const auto longest =
            std::ranges::min_element(ordinary_, {}, [](const connection* each) { return each->waiting_since(); });
        if (longest == ordinary_.end() || (*longest)->waiting_since() == connection::not_waiting)
            return false;
        (*longest)->cut();
        ordinary_.erase(longest);
        ++closing_;
        return true;
    }

    limits most_;
    request_rules with_, urgent_;
    int ends_;               // readable when the server ends
    std::vector<int> spare_; // descriptors for connections in reserve; for the accepting thread
    bool told_ = false;      // that there are no more threads
    std::mutex lock_;
    std::vector<connection*> ordinary_; // those that may be cut
    std::size_t in_reserve_ = 0;
    std::size_t closing_ = 0; // were cut, and have not ended yet
};

} // namespace server
