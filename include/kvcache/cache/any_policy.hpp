// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/type_name.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/storage/concept.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

// One policy of a list, chosen by its name, with its standard options; and a variant of the policies' states.
template <class List, class... OpenArguments>
class chosen;
template <class... Ps, class... OpenArguments>
class chosen<std::tuple<Ps...>, OpenArguments...> {
public:
    using states = std::variant<std::monostate,
                                decltype(std::declval<const Ps&>().open(std::declval<const OpenArguments&>()...))...>;

    /// The names of the list, in order, separated by commas.
    [[nodiscard]] static std::string names() {
        std::string all;
        ((all += (all.empty() ? "" : ", ") + type_name<Ps>()), ...);
        return all;
    }

    [[nodiscard]] static result<chosen> named(const char* role, std::string_view name) {
        chosen made;
        std::size_t place = 0;
        const bool found = ((type_name<Ps>() == name ? (made.place_ = place, true) : (++place, false)) || ...);
        if (!found)
            return error{error_code::not_found, role,
                         std::string("no ") + role + " policy is named \"" + std::string(name) + "\"; there are " +
                             names()};
        return made;
    }

    /// Opens the policy into `to`.
    void open(states& to, const OpenArguments&... arguments) const {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (void)((I == place_ ? (emplace<I>(to, arguments...), true) : false) || ...);
        }
        (std::index_sequence_for<Ps...>{});
    }

private:
    // A conversion whose result is constructed in place, so it need not be movable.
    template <class Make>
    struct made_by {
        Make make;
        operator decltype(std::declval<const Make&>()())() const { return make(); }
    };

    // Emplaced by index: several policies may have states of the same type.
    template <std::size_t I>
    static void emplace(states& to, const OpenArguments&... arguments) {
        const auto make = [&] { return std::tuple_element_t<I, std::tuple<Ps...>>{}.open(arguments...); };
        to.template emplace<I + 1>(made_by<decltype(make)>{make});
    }

    std::size_t place_ = 0;
};

template <class Policy, class Choice>
[[nodiscard]] result<Policy> made_of(const result<Choice>& which) {
    if (!which)
        return which.error();
    return Policy(*which);
}

// Calls `call` with the state that is held.
template <class States, class Call>
auto with(States& states, Call&& call) {
    using answer = decltype(call(*std::get_if<1>(&states)));
    return std::visit(
        [&](auto& state) -> answer {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(state)>, std::monostate>)
                throw std::bad_variant_access(); // a moved-from state
            else
                return call(state);
        },
        states);
}

} // namespace detail

/// A storage policy that is chosen by its name at run time. `List` may be a tuple of your own policies.
template <class List>
class any_storage {
    using choice = detail::chosen<List, std::size_t, std::size_t>;

public:
    using role = storage_role;

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_storage> named(std::string_view name) {
        return detail::made_of<any_storage>(choice::named("storage", name));
    }
    [[nodiscard]] static std::string names() { return choice::names(); }

    any_storage() = default; ///< The first policy of the list.
    explicit any_storage(choice which) : which_(which) {}

    class state {
    public:
        state(const choice& which, std::size_t pages, std::size_t page_bytes) { which.open(one_, pages, page_bytes); }
        [[nodiscard]] bool acquire(page_id page) {
            return detail::with(one_, [&](auto& one) -> bool { return one.acquire(page); });
        }
        void release(page_id page) noexcept {
            detail::with(one_, [&](auto& one) { one.release(page); });
        }
        [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
            return detail::with(one_, [&](const auto& one) -> std::span<std::byte> { return one.bytes(page); });
        }

    private:
        typename choice::states one_;
    };
    [[nodiscard]] state open(std::size_t pages, std::size_t page_bytes) const { return {which_, pages, page_bytes}; }

private:
    choice which_;
};

/// A hash policy that is chosen by its name at run time.
template <class List>
class any_hash {
    using choice = detail::chosen<List, identity>;

public:
    using role = hash_role;

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_hash> named(std::string_view name) {
        return detail::made_of<any_hash>(choice::named("hash", name));
    }
    [[nodiscard]] static std::string names() { return choice::names(); }

    any_hash() = default; ///< The first policy of the list.
    explicit any_hash(choice which) : which_(which) {}

    class state {
    public:
        state(const choice& which, const identity& id) { which.open(one_, id); }
        [[nodiscard]] digest root() const {
            return detail::with(one_, [](const auto& one) -> digest { return one.root(); });
        }
        [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
            return detail::with(one_, [&](const auto& one) -> digest { return one.chain(before, run); });
        }

    private:
        typename choice::states one_;
    };
    [[nodiscard]] state open(const identity& id) const { return {which_, id}; }

private:
    choice which_;
};

/// An index policy that is chosen by its name at run time.
template <class List>
class any_index {
    using choice = detail::chosen<List, page_shape, std::size_t>;

public:
    using role = index_role;

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_index> named(std::string_view name) {
        return detail::made_of<any_index>(choice::named("index", name));
    }
    [[nodiscard]] static std::string names() { return choice::names(); }

    any_index() = default; ///< The first policy of the list.
    explicit any_index(choice which) : which_(which) {}

    class state {
    public:
        state(const choice& which, page_shape shape, std::size_t pages) { which.open(one_, shape, pages); }
        [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
            return detail::with(one_, [&](const auto& one) { return one.match(tokens); });
        }
        insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
            return detail::with(one_, [&](auto& one) { return one.insert(parent, tokens, page); });
        }
        void erase(page_id page) {
            detail::with(one_, [&](auto& one) { one.erase(page); });
        }
        [[nodiscard]] bool contains(page_id page) const {
            return detail::with(one_, [&](const auto& one) { return one.contains(page); });
        }
        [[nodiscard]] bool leaf(page_id page) const {
            return detail::with(one_, [&](const auto& one) { return one.leaf(page); });
        }
        [[nodiscard]] std::optional<page_id> parent(page_id page) const {
            return detail::with(one_, [&](const auto& one) { return one.parent(page); });
        }
        [[nodiscard]] std::span<const token_id> run(page_id page) const {
            return detail::with(one_, [&](const auto& one) { return one.run(page); });
        }

    private:
        typename choice::states one_;
    };
    [[nodiscard]] state open(page_shape shape, std::size_t pages) const { return {which_, shape, pages}; }

private:
    choice which_;
};

/// An eviction policy that is chosen by its name at run time.
template <class List>
class any_eviction {
    using choice = detail::chosen<List, eviction_capacity>;

public:
    using role = eviction_role;

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_eviction> named(std::string_view name) {
        return detail::made_of<any_eviction>(choice::named("eviction", name));
    }
    [[nodiscard]] static std::string names() { return choice::names(); }

    any_eviction() = default; ///< The first policy of the list.
    explicit any_eviction(choice which) : which_(which) {}

    class state {
    public:
        state(const choice& which, eviction_capacity room) { which.open(one_, room); }
        void admit(slot_id slot, const eviction_entry& newcomer) {
            detail::with(one_, [&](auto& one) { one.admit(slot, newcomer); });
        }
        void touch(slot_id slot) {
            detail::with(one_, [&](auto& one) { one.touch(slot); });
        }
        void erase(slot_id slot) {
            detail::with(one_, [&](auto& one) { one.erase(slot); });
        }
        template <class IsEvictable>
        [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
            return detail::with(one_, [&](auto& one) { return one.victim(is_evictable); });
        }
        void on_miss(const eviction_entry& newcomer) {
            detail::with(one_, [&](auto& one) { kvcache::on_miss(one, newcomer); });
        }
        void evict(slot_id slot) {
            detail::with(one_, [&](auto& one) { kvcache::evict(one, slot); });
        }
        void on_released(slot_id slot) {
            detail::with(one_, [&](auto& one) { kvcache::on_released(one, slot); });
        }
        void on_child_added(slot_id slot) {
            detail::with(one_, [&](auto& one) { kvcache::on_child_added(one, slot); });
        }
        void on_last_child_removed(slot_id slot) {
            detail::with(one_, [&](auto& one) { kvcache::on_last_child_removed(one, slot); });
        }

    private:
        typename choice::states one_;
    };
    [[nodiscard]] state open(eviction_capacity room) const { return {which_, room}; }

private:
    choice which_;
};

}} // namespace kvcache
