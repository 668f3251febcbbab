// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/hash/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// Returns, for each field of an identity, its name and an identity that differs from the default in that field only.
[[nodiscard]] inline std::vector<std::pair<std::string, identity>> changed_identities() {
    return {{"weights", {.weights = {1, 0}}},
            {"adapter", {.adapter = "a"}},
            {"tokenizer", {.tokenizer = {1, 0}}},
            {"config", {.config = "a"}},
            {"rope", {.rope = "a"}},
            {"codec", {.codec = "a"}},
            {"layout", {.layout = "a"}},
            {"page_tokens", {.page_tokens = 16}},
            {"weight_format", {.weight_format = "a"}},
            {"numeric_contract", {.numeric_contract = numeric_contract_revision + 1}},
            {"backend", {.backend = "a"}},
            {"lineage", {.lineage = "a"}},
            {"format", {.format = record_format_revision + 1}},
            {"tenant", {.tenant = "a"}}};
}

/// Tests the required properties of a hash: distinct names for all runs of up to seven tokens from an alphabet of
/// three.
template <hash_policy Policy>
[[nodiscard]] violations hash_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    std::set<digest> names;
    std::set<std::uint64_t> low_halves;
    const auto fresh = [&](digest name) { return names.insert(name).second && low_halves.insert(name.low).second; };

    std::size_t fields = 0;
    for_each_field(identity{}, [&](const char*, const auto&) { ++fields; });
    const auto changed = changed_identities();
    detail::check_property(broken, fields == changed.size(), "changed_identities() changes every field");
    (void)fresh(policy.open({}).root());
    for (const auto& [field, id] : changed)
        detail::check_property(broken, fresh(policy.open(id).root()),
                               "the root depends on every field of the identity");

    const auto state = policy.open({}), twin = policy.open({});
    detail::check_property(broken, state.root() == twin.root(), "equal identities have one root");
    std::vector<std::vector<token_id>> runs = {{}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const std::vector<token_id> run = runs[i];
        if (!run.empty()) {
            const digest name = state.chain(state.root(), run);
            detail::check_property(broken, name == twin.chain(twin.root(), run), "equal runs have one name");
            detail::check_property(broken, fresh(name), "every token, its place and their number matter");
        }
        if (run.size() < 7)
            for (const std::int32_t token : {0, 1, -1}) {
                runs.push_back(run);
                runs.back().push_back(token_id{token});
            }
    }

    detail::choices choose(seed);
    digest before = state.root();
    for (std::size_t link = 0; link < 500; ++link) {
        std::vector<token_id> run(1 + choose.below(80));
        std::ranges::generate(run, [&] { return token_id{static_cast<std::int32_t>(choose.below(50000))}; });
        const digest next = state.chain(before, run);
        detail::check_property(broken, fresh(next), "a long chain never comes back");
        detail::check_property(broken,
                               state.chain({before.low ^ 1, before.high}, run) != next &&
                                   state.chain({before.low, before.high ^ 1}, run) != next,
                               "what comes before a run matters");
        before = next;
    }
    return broken;
}

}}} // namespace kvcache::testing
