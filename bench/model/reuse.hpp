// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "subject.hpp"

namespace bench {

namespace detail {

inline void append(tokens& to, const tokens& more) {
    to.insert(to.end(), more.begin(), more.end());
}

// The time from a prompt to its first token, and the prefill's result.
struct first_token {
    double seconds = 0.0;
    kvcache::prefill_result<cache> filled;
};
inline first_token ask(pipeline_type& runner, const tokens& prompt) {
    const kvcache::sampler likeliest;
    const stopwatch watch;
    auto filled = must(runner.prefill(prompt));
    static_cast<void>(likeliest.draw(kvcache::row_of(std::as_const(filled.logits), 0), 0));
    return {watch.seconds(), std::move(filled)};
}

// Extends an existing sequence by the same number of tokens, without an index lookup. Returns seconds.
inline double run_alone(pipeline_type& runner, sequence& behind, std::span<const kvcache::token_id> prompt) {
    const kvcache::sampler likeliest;
    const stopwatch watch;
    const auto logits = must(runner.extend(behind, prompt));
    static_cast<void>(likeliest.draw(kvcache::row_of(logits, 0), 0));
    return watch.seconds();
}

} // namespace detail

/// The token counts of a conversation: a system prompt, then `turns` turns, each of `around` template tokens, `user`
/// tokens of the user and a reply.
struct conversation {
    std::size_t system = 64, user = 8, around = 8, reply = 64, turns = 10;
};

/// Measures the milliseconds to the first token of each turn: with the conversation cached (warm), without (cold), and
/// the bound, an extension by only the new tokens of a sequence that holds the earlier ones. A reply's last token is
/// generated but never run through the model, so it counts as one of the next turn's new tokens.
inline void chat(const visit& at, const conversation& talk) {
    tokens history = at.of.fresh(talk.system);
    sequence alone = at.of.pages().open();
    std::optional<sequence> said;
    for (std::size_t turn = 1; turn <= talk.turns; ++turn) {
        const std::size_t known = said ? said->size() : 0;
        detail::append(history, at.of.fresh(talk.around + talk.user));
        const std::size_t length = history.size();
        said.reset();

        auto warm = detail::ask(at.runner, history);
        if (warm.filled.reused != known)
            throw std::runtime_error("the cache forgot the conversation");
        const double bound = detail::run_alone(at.runner, alone, at.of.fresh(length - known));
        const double cold = detail::ask(at.runner, at.of.fresh(length)).seconds;

        const std::string name = (turn < 10 ? "_turn_0" : "_turn_") + std::to_string(turn);
        at.time("chat_warm" + name, warm.seconds, "chat_bound" + name);
        at.time("chat_bound" + name, bound,
                [&of = at.of, &most = at.most, length, known] { return of.bound(most, length - known, known); });
        at.time("chat_cold" + name, cold, [&of = at.of, &most = at.most, length] { return of.bound(most, length, 0); });

        const tokens reply = at.of.fresh(talk.reply);
        const auto ran = std::span(reply).first(talk.reply - 1);
        static_cast<void>(must(at.runner.extend(warm.filled.sequence, ran, kvcache::logits_mode::none)));
        static_cast<void>(must(at.runner.extend(alone, ran, kvcache::logits_mode::none)));
        detail::append(history, reply);
        said = std::move(warm.filled.sequence);
    }
}

/// Measures the bound of a chat that another program runs, turn by turn. Reads `NEW REPLY` from standard input, writes
/// the milliseconds from NEW new tokens to the first token, then appends a reply of REPLY tokens. `0 0` starts a new
/// conversation.
inline void paced_bound(subject& of, pipeline_type& runner) {
    sequence alone = of.pages().open();
    for (std::size_t fresh = 0, reply = 0; std::scanf("%zu %zu", &fresh, &reply) == 2;) {
        if (fresh == 0) {
            alone = of.pages().open();
            continue;
        }
        std::printf("%.3f\n", 1e3 * detail::run_alone(runner, alone, of.fresh(fresh)));
        std::fflush(stdout);
        if (reply > 0)
            static_cast<void>(must(runner.extend(alone, of.fresh(reply), kvcache::logits_mode::none)));
    }
}

/// A runner of forward passes over unpublished pages: no index is searched or updated.
class uncached {
public:
    uncached(subject& of, kvcache::thread_pool& threads)
        : of_(of),
          pass_(of.model().make_forward_pass<cache::lease>(threads)),
          logits_(1, static_cast<Eigen::Index>(of.model().vocabulary())) {}

    /// Returns the prompt's first token. Effects: releases the prompt's pages.
    std::size_t ask(const tokens& prompt) {
        sequence nothing = of_.pages().open();
        auto lease = must(of_.pages().reserve(nothing, prompt.size()));
        for (std::size_t row = 0; row < prompt.size();) {
            const std::size_t n = std::min(prompt.size() - row, of_.max_batch_tokens());
            const bool last = row + n == prompt.size();
            const kvcache::batch_slice<cache::lease> part{&lease, row, std::span(prompt).subspan(row, n),
                                                          last ? kvcache::logits_mode::last
                                                               : kvcache::logits_mode::none};
            pass_.begin(std::span(&part, 1));
            for (const auto layer : of_.model().layers())
                pass_.forward(layer);
            if (last)
                pass_.logits({logits_.data(), of_.model().vocabulary()});
            row += n;
        }
        const kvcache::sampler likeliest;
        return static_cast<std::size_t>(index_of(likeliest.draw(kvcache::row_of(std::as_const(logits_), 0), 0)));
    }

private:
    subject& of_;
    kvcache::forward_pass<cache::lease> pass_;
    kvcache::matrix logits_;
};

/// Measures the time to the first token of an unknown prompt, with the cache and without it; the limit is the forward
/// passes alone.
inline void zero_reuse(const visit& at, std::size_t length) {
    uncached alone(at.of, at.threads);
    const auto with = [&] { return detail::ask(at.runner, at.of.fresh(length)).seconds; };
    const auto without = [&] {
        const tokens prompt = at.of.fresh(length);
        const stopwatch watch;
        alone.ask(prompt);
        return watch.seconds();
    };
    const std::string name = "zero_reuse_" + std::to_string(length);
    static_cast<void>(with()), static_cast<void>(without()); // each allocates its buffers
    for (const bool first : {true, false, false, true}) {
        const double before = first ? with() : 0.0, plain = without();
        at.time(name, first ? before : with(), name + "_no_cache");
        at.time(name + "_no_cache", plain,
                [&of = at.of, &most = at.most, length] { return of.bound(most, length, 0); });
    }
}

/// Measures the milliseconds to the first token of consecutive users with a common system prompt and their own text:
/// warm for each user after the first, cold for the first.
inline void shared_system(const visit& at, std::size_t system, std::size_t own, std::size_t users) {
    const tokens common = at.of.fresh(system);
    const auto prompt = [&](tokens begin) {
        detail::append(begin, at.of.fresh(own));
        return begin;
    };
    const double cold = detail::ask(at.runner, prompt(common)).seconds;
    for (std::size_t user = 1; user < users; ++user)
        at.time("shared_system_warm", detail::ask(at.runner, prompt(common)).seconds,
                [&of = at.of, &most = at.most, system, own] { return of.bound(most, own, system); });
    at.time("shared_system_cold", cold,
            [&of = at.of, &most = at.most, system, own] { return of.bound(most, system + own, 0); });
}

/// The document orders of the prompts of permuted_documents.
inline constexpr std::array<std::array<std::size_t, 4>, 6> document_orders{
    {{0, 1, 2, 3}, {0, 1, 3, 2}, {1, 0, 2, 3}, {0, 2, 1, 3}, {1, 0, 3, 2}, {0, 1, 2, 3}}};

/// Measures questions about the same documents in different orders, where only a common prefix is reused. The rows are
/// the total milliseconds to the first tokens of all prompts (warm), and of as many prompts with new documents (cold).
inline void permuted_documents(const visit& at, std::size_t system, std::size_t document, std::size_t question) {
    double warm = 0.0, cold = 0.0;
    const auto documents = [&] {
        std::array<tokens, 5> made; // and the system prompt
        for (tokens& one : made)
            one = at.of.fresh(document);
        made[4] = at.of.fresh(system);
        return made;
    };
    const auto prompt = [&](const std::array<tokens, 5>& from, const std::array<std::size_t, 4>& order) {
        tokens made = from[4];
        for (const std::size_t one : order)
            detail::append(made, from[one]);
        detail::append(made, at.of.fresh(question));
        return made;
    };
    const auto stored = documents();
    for (const auto& order : document_orders) {
        warm += detail::ask(at.runner, prompt(stored, order)).seconds;
        cold += detail::ask(at.runner, prompt(documents(), order)).seconds;
    }
    const std::size_t length = system + 4 * document + question;
    const auto bound = [&of = at.of, &most = at.most, length] {
        return static_cast<double>(document_orders.size()) * of.bound(most, length, 0);
    };
    at.time("permuted_documents_warm", warm, [&of = at.of, &most = at.most, system, document, question, length] {
        // The documents in the longest exact prefix, per prompt. The first prompt, which reuses nothing, is counted
        // above.
        const std::array<std::size_t, 6> kept{0, 2, 0, 1, 2, 4};
        double seconds = of.bound(most, length, 0);
        for (std::size_t i = 1; i < kept.size(); ++i) {
            const std::size_t known = system + kept[i] * document;
            seconds += of.bound(most, length - known, known);
        }
        static_cast<void>(question);
        return seconds;
    });
    at.time("permuted_documents_cold", cold, bound);
}

} // namespace bench
