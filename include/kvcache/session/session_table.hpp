// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/eviction/prioritised.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A session in use. Its destructor releases the session to the next request. Requires: the table outlives it.
template <class Table>
class session_guard {
public:
    session_guard(session_guard&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)),
          slot_(other.slot_),
          bytes_(other.bytes_),
          is_kept_(other.is_kept_) {}
    /// Releases the session it held before.
    session_guard& operator=(session_guard&& other) noexcept {
        session_guard taken(std::move(other));
        std::swap(table_, taken.table_);
        std::swap(slot_, taken.slot_);
        std::swap(bytes_, taken.bytes_);
        std::swap(is_kept_, taken.is_kept_);
        return *this;
    }
    ~session_guard() {
        if (table_ != nullptr)
            table_->release(slot_, bytes_, is_kept_);
    }

    [[nodiscard]] auto& operator*() const noexcept { return *slot_->session; }
    [[nodiscard]] auto* operator->() const noexcept { return slot_->session.get(); }

    /// Sets the bytes that the session keeps after its release.
    void set_bytes(std::size_t bytes) noexcept { bytes_ = bytes; }
    /// Sets whether the session stays in the table after its release, as it does by default. The next request of its
    /// key gets a new one otherwise.
    void set_kept(bool is_kept) noexcept { is_kept_ = is_kept; }

private:
    friend Table;
    using slot = typename Table::slot;
    session_guard(Table& table, slot& of) : table_(&table), slot_(&of), bytes_(of.bytes) {}

    Table* table_;
    slot* slot_;
    std::size_t bytes_;
    bool is_kept_ = true;
};

/// Limits of a session table.
struct session_limits {
    std::size_t sessions = 64;
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< Total bytes, as set by the holders.
};

/// A session in a listing.
struct session_entry {
    std::string key = {};
    std::size_t uses = 0; ///< Number of requests so far.
    std::size_t bytes = 0;
    bool in_use = false;
};

/// LRU with two priority levels: sessions used once are evicted before sessions used again, so a one-off request
/// evicts no conversation.
using default_session_eviction = eviction::prioritised<eviction::lru>;
/// Returns the default eviction of sessions: the first use has level 0, later uses level 1.
[[nodiscard]] inline default_session_eviction conversations_stay() {
    return {.rule = {{{{.first = 1, .count = std::numeric_limits<std::uint32_t>::max() - 1, .level = 1}}}}};
}

/// Who waits for something that one at a time may have, in order of arrival. Not thread-safe.
class ticket_queue {
public:
    /// Joins the line, and returns the ticket.
    [[nodiscard]] std::uint64_t join() noexcept { return next_++; }
    [[nodiscard]] bool is_first(std::uint64_t ticket) const noexcept { return ticket == serving_; }
    /// Whether anyone has it or waits for it.
    [[nodiscard]] bool busy() const noexcept { return next_ != serving_; }

    /// The first one has finished.
    void advance() {
        ++serving_;
        while (given_up_.erase(serving_) > 0)
            ++serving_;
    }
    /// One that is not first leaves the line. Throws: bad_alloc.
    void give_up(std::uint64_t ticket) { given_up_.insert(ticket); }

private:
    std::uint64_t next_ = 0;    // the next ticket to hand out
    std::uint64_t serving_ = 0; // the ticket of the first one
    std::set<std::uint64_t> given_up_;
};

/// Sessions by model and key, limited in count and bytes. A session is evicted from the client that has the most of
/// what is short, so that a client displaces no session of another one that has less, also if its own are all in use.
/// Among those sessions any eviction policy selects the victim; the depth of an entry is 0 at its first use and 1 after
/// its second. One request holds a session at a time; others wait in order of arrival. Any thread may call it.
/// Requires: it outlives its holds.
template <class Session, eviction_policy Eviction = default_session_eviction>
class session_table {
    template <class>
    friend class session_guard;
    struct slot;

public:
    using hold = session_guard<session_table>;

    explicit session_table(session_limits limits, Eviction eviction)
        : limits_(limits),
          order_(open_checked(eviction, {.slots = limits.sessions, .bytes = limits.sessions})),
          slots_(limits.sessions) {
        require(limits.sessions > 0, "a table has room for a session");
    }
    explicit session_table(session_limits limits = {}) requires std::same_as<Eviction, default_session_eviction>
        : session_table(limits, conversations_stay()) {}

    /// Returns the session of a key after all earlier requests have released it. If there is none, `make()` creates
    /// one as a unique_ptr. Errors: out_of_memory if all sessions are in use.
    template <class Make>
    [[nodiscard]] result<hold> acquire(const digest& model, std::string_view key, Make make) {
        return acquire(model, key, std::move(make), never);
    }
    /// Like acquire, but calls `gives_up` from time to time while it waits, and ends when that returns true. Errors:
    /// cancelled, besides those of acquire.
    template <class Make, class GivesUp>
    [[nodiscard]] result<hold> acquire(const digest& model, std::string_view key, Make make, GivesUp gives_up) {
        return acquire(model, key, 0, std::move(make), std::move(gives_up));
    }
    /// Like acquire, for a client. A session belongs to the client that it was made for.
    template <class Make, class GivesUp>
    [[nodiscard]] result<hold> acquire(const digest& model, std::string_view key, std::uint64_t client, Make make,
                                       GivesUp gives_up) {
        std::unique_ptr<Session> gone; // destroyed after the lock is released
        std::unique_lock guard(lock_);
        auto found = names_.find({model, std::string(key)});
        if (found == names_.end()) {
            const auto free = free_slot(client, gone);
            if (!free)
                return error{error_code::out_of_memory, "sessions",
                             "all " + std::to_string(limits_.sessions) + " sessions are in use"};
            found = enter(*free, model, key, client);
        } else
            again(found->second);
        slot& of = *slots_[index_of(found->second)];
        if (!wait(of, guard, gives_up))
            return error{error_code::cancelled, "sessions", "the caller gave up waiting for the session"};
        if (!of.session)
            try {
                of.session = make();
            } catch (...) {
                leave(of, gone);
                throw;
            }
        return hold(*this, of);
    }

    /// Removes a session after the requests that wait for it. Returns false if there is none.
    bool remove(const digest& model, std::string_view key) { return remove(model, key, never); }
    /// Like remove, but also returns false when it waits and `gives_up` returns true.
    template <class GivesUp>
    bool remove(const digest& model, std::string_view key, GivesUp gives_up) {
        std::unique_ptr<Session> gone;
        std::unique_lock guard(lock_);
        const auto found = names_.find({model, std::string(key)});
        if (found == names_.end())
            return false;
        slot& of = *slots_[index_of(found->second)];
        if (!wait(of, guard, gives_up))
            return false;
        gone = std::move(of.session);
        set_bytes(of, 0);
        std::unique_ptr<Session> none;
        leave(of, none);
        return true;
    }

    /// Evicts the session that the policy selects, of the client with the most bytes. Returns false if all are in use.
    bool evict() {
        std::unique_ptr<Session> gone;
        const std::lock_guard guard(lock_);
        return evict_one(bytes_of, gone);
    }

    /// Evicts every session that is not in use.
    void clear() {
        while (evict()) {
        }
    }

    /// Returns the sessions of a model, ordered by key.
    [[nodiscard]] std::vector<session_entry> list(const digest& model) const {
        const std::lock_guard guard(lock_);
        std::vector<session_entry> made;
        for (const auto& [whose, place] : names_)
            if (whose.first == model) {
                const slot& of = *slots_[index_of(place)];
                made.push_back({whose.second, of.uses, of.bytes, of.busy()});
            }
        return made;
    }

    [[nodiscard]] std::size_t size() const {
        const std::lock_guard guard(lock_);
        return names_.size();
    }
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard guard(lock_);
        return bytes_;
    }

private:
    using name = std::pair<digest, std::string>;
    using names = std::map<name, slot_id>;

    /// What a client has.
    struct share {
        std::size_t sessions = 0;
        std::size_t bytes = 0;
    };
    using shares = std::map<std::uint64_t, share>;

    struct slot {
        typename names::iterator place = {};
        typename shares::iterator client = {};
        std::unique_ptr<Session> session = {};
        std::size_t bytes = 0;
        std::size_t uses = 0;
        ticket_queue line = {};

        [[nodiscard]] bool busy() const noexcept { return line.busy(); }
    };

    // Returns a free slot, and evicts a session if none is free.
    [[nodiscard]] std::optional<slot_id> free_slot(std::uint64_t client, std::unique_ptr<Session>& gone) {
        const auto sessions_of = [&](const typename shares::value_type& of) { // with the one that comes
            return of.second.sessions + (of.first == client ? 1 : 0);
        };
        const auto own = clients_.find(client);
        const std::size_t with_this = own == clients_.end() ? 1 : sessions_of(*own);
        if (names_.size() == limits_.sessions && !evict_one(sessions_of, gone, with_this))
            return std::nullopt;
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (!slots_[i])
                return slot_id{static_cast<std::uint32_t>(i)};
        return std::nullopt;
    }

    [[nodiscard]] typename names::iterator enter(slot_id at, const digest& model, std::string_view key,
                                                 std::uint64_t client) {
        auto made = std::make_unique<slot>();
        const auto place = names_.emplace(name{model, std::string(key)}, at).first;
        try {
            made->client = clients_.try_emplace(client).first;
            admit(at, 0);
        } catch (...) {
            names_.erase(place);
            drop_empty(clients_.find(client));
            throw;
        }
        made->place = place;
        made->uses = 1;
        ++made->client->second.sessions;
        slots_[index_of(at)] = std::move(made);
        return place;
    }

    void admit(slot_id at, std::uint32_t depth) {
        const eviction_entry newcomer{.key = index_of(at), .bytes = 1, .cost = 1.0, .depth = depth};
        on_miss(order_, newcomer);
        order_.admit(at, newcomer);
    }

    // Counts a repeated use of a session.
    void again(slot_id at) {
        slot& of = *slots_[index_of(at)];
        if (++of.uses == 2) {
            order_.erase(at);
            try {
                admit(at, 1);
            } catch (...) {
                of.uses = 1;
                admit(at, 0); // cannot fail: the slot's memory is already there
                throw;
            }
        }
        order_.touch(at);
    }

    static constexpr auto never = [] { return false; };

    // Waits for the turn of a new ticket. Returns false, without a ticket, when the caller gives up.
    template <class GivesUp>
    [[nodiscard]] bool wait(slot& of, std::unique_lock<std::mutex>& guard, GivesUp& gives_up) {
        const std::uint64_t ticket = of.line.join();
        while (!free_.wait_for(guard, std::chrono::milliseconds(50), [&] { return of.line.is_first(ticket); })) {
            guard.unlock();
            const bool ends = gives_up();
            guard.lock();
            if (ends && !of.line.is_first(ticket)) {
                of.line.give_up(ticket);
                return false;
            }
        }
        return true;
    }

    // Ends a hold of a slot. A slot without a session and without waiting requests becomes free.
    void leave(slot& of, std::unique_ptr<Session>& gone) {
        of.line.advance();
        free_.notify_all();
        if (!of.session && !of.busy()) {
            const slot_id at = of.place->second;
            order_.erase(at);
            forget(at, gone);
        }
    }

    void release(slot* of, std::size_t bytes, bool is_kept) {
        std::unique_ptr<Session> dropped, none;
        std::vector<std::unique_ptr<Session>> gone;
        const std::lock_guard guard(lock_);
        set_bytes(*of, is_kept ? bytes : 0);
        if (!is_kept)
            dropped = std::move(of->session);
        on_released(order_, of->place->second);
        leave(*of, none);
        while (bytes_ > limits_.bytes) {
            gone.emplace_back();
            if (!evict_one(bytes_of, gone.back()))
                break;
        }
    }

    void set_bytes(slot& of, std::size_t bytes) {
        bytes_ = bytes_ - of.bytes + bytes;
        of.client->second.bytes += bytes - of.bytes;
        of.bytes = bytes;
    }

    static constexpr auto bytes_of = [](const typename shares::value_type& of) { return of.second.bytes; };

    // Evicts a session of a client with the largest share, as `size_of` measures it, among those with an idle session,
    // unless that share is less than `least`.
    template <class SizeOf>
    bool evict_one(SizeOf size_of, std::unique_ptr<Session>& gone, std::size_t least = 0) {
        std::size_t largest = 0;
        for (const auto& each : slots_)
            if (each && !each->busy())
                largest = std::max(largest, size_of(*each->client));
        if (largest < least)
            return false;
        const auto is_evictable = [&](slot_id at) {
            return index_of(at) < slots_.size() && slots_[index_of(at)] && !slots_[index_of(at)]->busy() &&
                   size_of(*slots_[index_of(at)]->client) == largest;
        };
        const auto victim = order_.victim(is_evictable);
        if (!victim)
            return false;
        require(is_evictable(*victim), "an eviction policy's victim is evictable");
        kvcache::evict(order_, *victim);
        forget(*victim, gone);
        return true;
    }

    void forget(slot_id at, std::unique_ptr<Session>& gone) {
        slot& of = *slots_[index_of(at)];
        set_bytes(of, 0);
        gone = std::move(of.session);
        names_.erase(of.place);
        --of.client->second.sessions;
        drop_empty(of.client);
        slots_[index_of(at)].reset();
    }

    void drop_empty(typename shares::iterator client) {
        if (client != clients_.end() && client->second.sessions == 0)
            clients_.erase(client);
    }

    session_limits limits_;
    mutable std::mutex lock_;
    std::condition_variable free_;
    checked_eviction<opened_by<Eviction, eviction_capacity>> order_;
    names names_;
    shares clients_;
    std::vector<std::unique_ptr<slot>> slots_;
    std::size_t bytes_ = 0;
};

}} // namespace kvcache
