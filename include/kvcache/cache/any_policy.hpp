// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/core/type_name.hpp>

#include <cstddef>
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

}} // namespace kvcache
