// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/compose.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/type_name.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/storage/all.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace kvcache { inline namespace KVCACHE_ABI {

template <class List, class... OpenArguments>
class opened_choice;

/// The state of the policy of a list that was chosen. `visit` calls a function with it, at the cost of one indirect
/// jump. `OpenArguments`: what the policies of the list are opened with.
template <class... Ps, class... OpenArguments>
class opened_choice<std::tuple<Ps...>, OpenArguments...> {
public:
    using choice = opened_choice;
    /// The part of a policy that opens a state at a place in the list.
    template <class State>
    struct opener {
        std::size_t place = 0;
        [[nodiscard]] State open(const OpenArguments&... arguments) const { return State(place, arguments...); }
    };

    /// Opens the policy at `place` of the list, with its standard options.
    opened_choice(std::size_t place, const OpenArguments&... arguments) {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (void)((I == place && (emplace<I>(arguments...), true)) || ...);
        }
        (std::index_sequence_for<Ps...>{});
    }

    template <class Call>
    decltype(auto) visit(Call&& call) {
        return visit(one_, call);
    }
    template <class Call>
    decltype(auto) visit(Call&& call) const {
        return visit(one_, call);
    }

private:
    // A conversion whose result is constructed in place, so it need not be movable.
    template <class Make>
    struct made_by {
        Make make;
        operator decltype(std::declval<const Make&>()())() const { return make(); }
    };
    // By index: several policies may have states of the same type.
    template <std::size_t I>
    void emplace(const OpenArguments&... arguments) {
        const auto make = [&] { return std::tuple_element_t<I, std::tuple<Ps...>>{}.open(arguments...); };
        one_.template emplace<I + 1>(made_by<decltype(make)>{make});
    }

    template <class States, class Call>
    static decltype(auto) visit(States& states, Call& call) {
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

    std::variant<std::monostate, decltype(std::declval<const Ps&>().open(std::declval<const OpenArguments&>()...))...>
        one_;
};

/// A policy that is chosen from a list by its name at run time, with its standard options. `State` is its working
/// state: made of the place in the list and the arguments of `open`, and with the role and its name.
template <class List, template <class> class State>
class any_policy;

/// The same for a list that is spelled as a tuple.
template <class... Ps, template <class> class State>
class any_policy<std::tuple<Ps...>, State>
    : public State<std::tuple<Ps...>>::choice::template opener<State<std::tuple<Ps...>>> {
public:
    using state = State<std::tuple<Ps...>>;
    using role = typename state::role;

    any_policy() = default; ///< The first policy of the list.

    /// Errors: not_found, with the available names.
    [[nodiscard]] static result<any_policy> named(std::string_view name) {
        any_policy made;
        const bool found = ((type_name<Ps>() == name || (++made.place, false)) || ...);
        if (!found)
            return error{error_code::not_found, state::role_name,
                         std::string("no ") + state::role_name + " policy is named \"" + std::string(name) +
                             "\"; there are " + names()};
        return made;
    }
    /// The names of the list, in order, separated by commas.
    [[nodiscard]] static std::string names() {
        std::string all;
        ((all += (all.empty() ? "" : ", ") + type_name<Ps>()), ...);
        return all;
    }
};

namespace detail {

// The states of policies that are chosen at run time: each call goes to the state that was opened.

template <class List>
struct any_storage_state : opened_choice<List, std::size_t, std::size_t> {
    using role = storage_role;
    static constexpr const char* role_name = "storage";
    using opened_choice<List, std::size_t, std::size_t>::opened_choice;

    [[nodiscard]] bool acquire(page_id page) {
        return this->visit([&](auto& one) -> bool { return one.acquire(page); });
    }
    void release(page_id page) noexcept {
        this->visit([&](auto& one) { one.release(page); });
    }
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const {
        return this->visit([&](const auto& one) -> std::span<std::byte> { return one.bytes(page); });
    }
};

template <class List>
struct any_hash_state : opened_choice<List, identity> {
    using role = hash_role;
    static constexpr const char* role_name = "hash";
    using opened_choice<List, identity>::opened_choice;

    [[nodiscard]] digest root() const {
        return this->visit([](const auto& one) -> digest { return one.root(); });
    }
    [[nodiscard]] digest chain(digest before, std::span<const token_id> run) const {
        return this->visit([&](const auto& one) -> digest { return one.chain(before, run); });
    }
};

template <class List>
struct any_index_state : opened_choice<List, page_shape, std::size_t> {
    using role = index_role;
    static constexpr const char* role_name = "index";
    using opened_choice<List, page_shape, std::size_t>::opened_choice;

    [[nodiscard]] index_match match(std::span<const token_id> tokens) const {
        return this->visit([&](const auto& one) { return one.match(tokens); });
    }
    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        return this->visit([&](auto& one) { return one.insert(parent, tokens, page); });
    }
    void erase(page_id page) {
        this->visit([&](auto& one) { one.erase(page); });
    }
    [[nodiscard]] bool contains(page_id page) const {
        return this->visit([&](const auto& one) { return one.contains(page); });
    }
    [[nodiscard]] bool leaf(page_id page) const {
        return this->visit([&](const auto& one) { return one.leaf(page); });
    }
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        return this->visit([&](const auto& one) { return one.parent(page); });
    }
    [[nodiscard]] std::span<const token_id> run(page_id page) const {
        return this->visit([&](const auto& one) { return one.run(page); });
    }
};

template <class List>
struct any_eviction_state : opened_choice<List, eviction_capacity> {
    using role = eviction_role;
    static constexpr const char* role_name = "eviction";
    using opened_choice<List, eviction_capacity>::opened_choice;

    void admit(slot_id slot, const eviction_entry& newcomer) {
        this->visit([&](auto& one) { one.admit(slot, newcomer); });
    }
    void touch(slot_id slot) {
        this->visit([&](auto& one) { one.touch(slot); });
    }
    void erase(slot_id slot) {
        this->visit([&](auto& one) { one.erase(slot); });
    }
    template <class IsEvictable>
    [[nodiscard]] std::optional<slot_id> victim(IsEvictable&& is_evictable) {
        return this->visit([&](auto& one) { return one.victim(is_evictable); });
    }
    void on_miss(const eviction_entry& newcomer) {
        this->visit([&](auto& one) { kvcache::on_miss(one, newcomer); });
    }
    void evict(slot_id slot) {
        this->visit([&](auto& one) { kvcache::evict(one, slot); });
    }
    void on_released(slot_id slot) {
        this->visit([&](auto& one) { kvcache::on_released(one, slot); });
    }
    void on_child_added(slot_id slot) {
        this->visit([&](auto& one) { kvcache::on_child_added(one, slot); });
    }
    void on_last_child_removed(slot_id slot) {
        this->visit([&](auto& one) { kvcache::on_last_child_removed(one, slot); });
    }
};

} // namespace detail

/// A storage that is chosen by its name at run time. `List` may be a tuple of your own policies.
template <class List>
using any_storage = any_policy<List, detail::any_storage_state>;
/// The same for a hash.
template <class List>
using any_hash = any_policy<List, detail::any_hash_state>;
/// The same for an index.
template <class List>
using any_index = any_policy<List, detail::any_index_state>;
/// The same for an eviction policy.
template <class List>
using any_eviction = any_policy<List, detail::any_eviction_state>;

/// Names of policies, as type_name() gives them.
struct policy_names {
    std::string storage = type_name<storage::heap>();
    std::string hash = type_name<hash::xxh3>();
    std::string index = type_name<index::radix>();
    std::string eviction = type_name<eviction::learned_reuse>();
};

/// A cache whose storage, hash, index and eviction policies are chosen at run time; the other roles keep their types.
/// Each policy call costs one indirect jump.
template <policy... Others>
using any_cache = cache<any_storage<storage_policies>, any_hash<hash_policies>, any_index<index_policies>,
                        any_eviction<eviction_policies>, Others...>;

/// Opens a cache with the policies of these names, each with its standard options.
/// Errors: not_found, with the role as its field and the available names in its message; those of open_cache.
template <policy... Others>
[[nodiscard]] result<any_cache<Others...>> open_any_cache(const policy_names& names, cache_config config,
                                                          Others... others) {
    const auto storage = any_storage<storage_policies>::named(names.storage);
    const auto hash = any_hash<hash_policies>::named(names.hash);
    const auto index = any_index<index_policies>::named(names.index);
    const auto eviction = any_eviction<eviction_policies>::named(names.eviction);
    if (!storage)
        return storage.error();
    if (!hash)
        return hash.error();
    if (!index)
        return index.error();
    if (!eviction)
        return eviction.error();
    return open_cache(std::move(config), *storage, *hash, *index, *eviction, std::move(others)...);
}

}} // namespace kvcache
