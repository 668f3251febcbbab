// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

namespace detail {

// An index, and a plain list of pages with their parents and runs.
template <index_policy Policy>
class index_trial {
public:
    index_trial(const Policy& policy, page_shape shape, std::size_t pages, violations& broken)
        : state_(policy.open(shape, pages)), tokens_(shape.tokens), truth_(pages), broken_(broken) {}

    void run(choices& choose, std::size_t rounds) {
        for (; rounds > 0; --rounds) {
            const page_id page{static_cast<std::uint32_t>(choose.below(truth_.size()))};
            if (choose.one_in(4) && known(page) && childless(page))
                erase(page);
            else if (!known(page) || run_of(page).size() < tokens_)
                insert(page, choose);
            compare(choose);
        }
        for (bool gone = true; std::exchange(gone, false);)
            for (std::uint32_t i = 0; i < truth_.size(); ++i)
                if (known(page_id{i}) && childless(page_id{i})) {
                    erase(page_id{i});
                    gone = true;
                }
        check_property(broken_, state_.match(chain_of(choose)).tokens == 0, "an emptied index knows nothing");
    }

private:
    using tokens = std::vector<token_id>;
    struct held {
        bool known = false;
        std::optional<page_id> parent = {};
        tokens run = {};
    };

    [[nodiscard]] bool known(page_id page) const { return truth_[index_of(page)].known; }
    [[nodiscard]] const tokens& run_of(page_id page) const { return truth_[index_of(page)].run; }
    [[nodiscard]] bool childless(page_id page) const {
        return ranges::none_of(truth_, [&](const held& one) { return one.known && one.parent == page; });
    }

    [[nodiscard]] static bool begins(const tokens& whole, std::span<const token_id> start) {
        return whole.size() >= start.size() && std::equal(start.begin(), start.end(), whole.begin());
    }

    void erase(page_id page) {
        state_.erase(page);
        truth_[index_of(page)] = {};
        check_property(broken_, !state_.contains(page) && state_.run(page).empty(), "an erased page is forgotten");
    }

    // Returns a random run, most often with the prefix of an existing one.
    [[nodiscard]] tokens any_run(choices& choose, std::size_t longest) {
        tokens run;
        if (const held& like = truth_[choose.below(truth_.size())]; like.known && !choose.one_in(3))
            run.assign(like.run.begin(),
                       like.run.begin() + static_cast<std::ptrdiff_t>(choose.below(like.run.size() + 1)));
        const std::size_t length = choose.one_in(2) ? longest : 1 + choose.below(longest);
        while (run.size() < length)
            run.push_back(token_id{static_cast<std::int32_t>(choose.below(2))});
        return run;
    }

    void insert(page_id page, choices& choose) {
        tokens run = any_run(choose, tokens_);
        std::optional<page_id> parent;
        if (known(page)) { // the page's own run, extended
            parent = truth_[index_of(page)].parent;
            tokens longer = run_of(page);
            if (run.size() > longer.size())
                std::copy(longer.begin(), longer.end(), run.begin());
            else
                run.assign(longer.begin(), longer.begin() + static_cast<std::ptrdiff_t>(run.size()));
        } else if (const page_id above{static_cast<std::uint32_t>(choose.below(truth_.size()))};
                   known(above) && run_of(above).size() == tokens_) {
            parent = above;
        }

        std::vector<page_id> longer, shorter;
        for (std::uint32_t i = 0; i < truth_.size(); ++i)
            if (truth_[i].known && truth_[i].parent == parent) {
                if (begins(truth_[i].run, run))
                    longer.push_back(page_id{i});
                else if (page_id{i} != page && begins(run, truth_[i].run))
                    shorter.push_back(page_id{i});
            }

        const insertion done = state_.insert(parent, run, page);
        if (!longer.empty()) {
            check_property(broken_, done.what == insertion::outcome::covered, "a run that is known is covered");
            check_property(broken_, done.other && ranges::find(longer, *done.other) != longer.end(),
                           "who covers a run begins with it and has its parent");
            return;
        }
        check_property(broken_,
                       done.what == (known(page) ? insertion::outcome::extended : insertion::outcome::inserted),
                       "a new run is inserted, and a page's longer run extends it");
        check_property(broken_, shorter.empty() ? !done.other : done.other == shorter.front(),
                       "a shorter form of a run leaves for it and is named");
        for (const page_id gone : shorter)
            truth_[index_of(gone)] = {};
        truth_[index_of(page)] = {true, parent, std::move(run)};
    }

    [[nodiscard]] tokens chain_to(std::optional<page_id> page) const {
        tokens chain;
        for (; page; page = truth_[index_of(*page)].parent)
            chain.insert(chain.begin(), run_of(*page).begin(), run_of(*page).end());
        return chain;
    }

    [[nodiscard]] tokens chain_of(choices& choose) {
        const page_id page{static_cast<std::uint32_t>(choose.below(truth_.size()))};
        tokens query = chain_to(known(page) ? std::optional(page) : std::nullopt);
        if (choose.one_in(3))
            query.resize(choose.below(query.size() + 1));
        if (choose.one_in(2) && !query.empty())
            query[choose.below(query.size())] = token_id{static_cast<std::int32_t>(choose.below(3))};
        if (choose.one_in(2))
            for (std::size_t n = choose.below(20); n > 0; --n)
                query.push_back(token_id{static_cast<std::int32_t>(choose.below(2))});
        return query;
    }

    void compare(choices& choose) {
        for (std::uint32_t i = 0; i < truth_.size(); ++i) {
            const held& one = truth_[i];
            check_property(broken_, state_.contains(page_id{i}) == one.known,
                           "it contains what was inserted and not erased");
            if (!one.known)
                continue;
            check_property(broken_, ranges::equal(state_.run(page_id{i}), one.run),
                           "a page's run is what was inserted");
            check_property(broken_, state_.parent(page_id{i}) == one.parent, "a page's parent is what was given");
            check_property(broken_, state_.leaf(page_id{i}) == childless(page_id{i}),
                           "a leaf is a page without children");
        }

        const tokens query = chain_of(choose);
        std::size_t longest = 0;
        std::vector<token_id> next; // the token stored after the longest match
        for (std::uint32_t i = 0; i < truth_.size(); ++i) {
            if (!truth_[i].known)
                continue;
            const tokens chain = chain_to(page_id{i});
            const auto same = static_cast<std::size_t>(ranges::mismatch(chain, query).in1 - chain.begin());
            if (same > longest) {
                longest = same;
                next.clear();
            }
            if (same == longest && same < chain.size())
                next.push_back(chain[same]);
        }
        const index_match found = state_.match(query);
        check_property(broken_, found.tokens == longest, "a match is the longest known run, counted in tokens");
        check_property(broken_, found.pages.size() == (found.tokens + tokens_ - 1) / tokens_,
                       "a match names the pages it needs");
        for (std::size_t i = 0; i < found.pages.size(); ++i) {
            check_property(broken_, known(found.pages[i]), "a matched page is in the index");
            check_property(broken_,
                           state_.parent(found.pages[i]) == (i > 0 ? std::optional(found.pages[i - 1]) : std::nullopt),
                           "matched pages are a chain, in order");
            const auto rest = std::span(query).subspan(i * tokens_);
            const auto used = rest.first(std::min({rest.size(), tokens_, found.tokens - i * tokens_}));
            check_property(broken_, begins(run_of(found.pages[i]), used),
                           "a matched page holds the tokens it is matched for");
        }
        const match_end end = longest == query.size() ? match_end::complete
                              : next.empty()          ? match_end::unknown
                                                      : match_end::different;
        check_property(broken_, found.end == end, "a match says why it ended");
        check_property(broken_,
                       end == match_end::different ? found.stored && ranges::find(next, *found.stored) != next.end()
                                                   : !found.stored,
                       "a match names the token that is stored where it ended");
    }

    decltype(std::declval<const Policy&>().open(page_shape{}, 0)) state_;
    std::size_t tokens_;
    std::vector<held> truth_;
    violations& broken_;
};

// Inserts thousands of siblings whose runs begin with the same token.
template <index_policy Policy>
void hostile_siblings(const Policy& policy, violations& broken) {
    constexpr std::uint32_t siblings = 3000, length = 16;
    auto state = policy.open({.tokens = length}, siblings);
    const auto run_of = [](std::uint32_t i) {
        std::vector<token_id> run(length, token_id{7});
        for (std::uint32_t digit = 1; digit < length; ++digit, i /= 2)
            run[length - digit] = token_id{static_cast<std::int32_t>(i % 2)};
        return run;
    };
    for (std::uint32_t i = 0; i < siblings; ++i)
        (void)state.insert(std::nullopt, run_of(i), page_id{i});
    for (std::uint32_t i = 0; i < siblings; ++i)
        check_property(broken, state.match(run_of(i)).pages == std::vector{page_id{i}},
                       "thousands of siblings are told apart");
    for (std::uint32_t i = 0; i < siblings; i += 2)
        state.erase(page_id{i});
    for (std::uint32_t i = 1; i < siblings; i += 2)
        check_property(broken, state.match(run_of(i)).tokens == length, "a sibling stays when others leave");
}

} // namespace detail

/// Tests the required properties of an index against a plain list of pages.
template <index_policy Policy>
[[nodiscard]] violations index_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::uint32_t tokens : {16u, 32u})
        for (const std::size_t pages : {1u, 2u, 5u, 14u})
            detail::index_trial<Policy>(policy, {.tokens = tokens}, pages, broken).run(choose, 400);
    detail::hostile_siblings(policy, broken);
    return broken;
}

}}} // namespace kvcache::testing
