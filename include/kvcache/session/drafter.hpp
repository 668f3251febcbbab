// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What a drafter is to continue.
struct draft_question {
    std::span<const token_id> text; ///< Prompt and answer so far; not empty.
    std::size_t most = 0;           ///< Maximum tokens to draft.
    const sampler& sampling;        ///< What draws the answer.
    std::size_t index = 0;          ///< Index of the next token in the answer.
};

/// Guesses how a text goes on: appends at most `most` tokens to an empty vector. The engine runs them in one batch with
/// the answer's last token and keeps those that it would have drawn (Leviathan et al. 2023, with the draws of a seed in
/// place of a ratio of probabilities), so an answer depends neither on the drafter nor on whether there is one, greedy
/// or sampled. Called by the thread that steps the engine; must not throw.
using drafter = std::function<void(const draft_question&, std::vector<token_id>&)>;

/// The continuation of a text by prompt lookup (Saxena 2023, prompt lookup decoding): the tokens after the latest
/// earlier occurrence of the last three tokens, else of the last two, else of the last one; at most `most`, as a view
/// of the text. Cost: O(tokens).
[[nodiscard]] inline std::span<const token_id> prompt_lookup(std::span<const token_id> text, std::size_t most) {
    for (std::size_t n = std::min<std::size_t>(3, text.size()); n > 0; --n) {
        const auto tail = text.last(n);
        const auto before = text.first(text.size() - 1); // an earlier occurrence ends before the text does
        const auto found = std::find_end(before.begin(), before.end(), tail.begin(), tail.end());
        if (found != before.end()) {
            const auto at = static_cast<std::size_t>(found - before.begin()) + n;
            return text.subspan(at, std::min(most, text.size() - at));
        }
    }
    return {};
}

/// A drafter that looks prompts up. An engine without another one uses it.
inline void draft_by_lookup(const draft_question& of, std::vector<token_id>& drafted) {
    const auto guess = prompt_lookup(of.text, of.most);
    drafted.assign(guess.begin(), guess.end());
}

/// A smaller model as a drafter, over a cache of its own. It draws with the seed of the answer, so that it guesses
/// draws too, and not only the likeliest token. What it has read of a text stays in its cache. One thread. Requires:
/// the tokens have the same meaning for both models; cache, model and threads outlive it, and the cache has no tenants.
///
///     auto small = std::make_shared<kvcache::model_drafter<Cache, Model>>(cache, model, threads);
///     request.drafter = [small](const auto& of, auto& drafted) { (*small)(of, drafted); };
template <class Cache, class Model>
class model_drafter {
public:
    model_drafter(Cache& cache, const Model& model, thread_pool& threads)
        : cache_(cache), pipeline_(cache, model, threads) {}

    /// Drafts nothing if the text is longer than the model's positions, or has tokens that it does not know, or if its
    /// cache is full. Cost: a forward pass of the model for each token.
    void operator()(const draft_question& of, std::vector<token_id>& drafted) {
        static_cast<void>(detail::completes<std::bad_alloc>([&] { draft(of, drafted); }));
    }

private:
    void draft(const draft_question& of, std::vector<token_id>& drafted) {
        auto sequence = cache_.open(of.text);
        const std::size_t known = std::min(sequence.size(), of.text.size() - 1);
        sequence.truncate(known);
        auto rest = of.text.subspan(sequence.size());
        for (std::size_t i = 0; i < of.most; ++i) {
            const batch_entry<Cache> one{&sequence, rest, logits_mode::last};
            if (!pipeline_.extend(std::span(&one, 1), logits_))
                return;
            const auto row = row_of(std::as_const(logits_), 0);
            if (!detail::check_finite(row))
                return;
            drafted.push_back(of.sampling.draw(row, of.index + i));
            rest = std::span(drafted).last(1);
        }
    }

    Cache& cache_;
    pipeline<Cache, Model> pipeline_;
    matrix logits_;
};

}} // namespace kvcache
