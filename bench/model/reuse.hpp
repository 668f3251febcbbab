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

// A prompt in, its first token out: what somebody waits for.
struct first_token {
    double seconds = 0.0;
    kvcache::fed<cache> fed;
};
inline first_token ask(pipeline& through, const tokens& prompt) {
    const kvcache::sampler likeliest;
    const stopwatch watch;
    auto fed = must(through.feed(prompt));
    static_cast<void>(likeliest.draw(kvcache::row_of(std::as_const(fed.logits), 0), 0));
    return {watch.seconds(), std::move(fed)};
}

// The same tokens behind a sequence that is there: no cache is asked.
inline double run_alone(pipeline& through, sequence& behind, std::span<const kvcache::token_id> prompt) {
    const kvcache::sampler likeliest;
    const stopwatch watch;
    const auto logits = must(through.extend(behind, prompt));
    static_cast<void>(likeliest.draw(kvcache::row_of(logits, 0), 0));
    return watch.seconds();
}

} // namespace detail

/// A conversation of so many turns: a system prompt; then each turn the template and the user's words, and a reply.
struct conversation {
    std::size_t system = 64, user = 8, around = 8, reply = 64, turns = 10;
};

/// Milliseconds to the first token, turn by turn: with the cache that heard the conversation (warm), without (cold),
/// and the bound, a prefill of the new tokens alone behind the ones before. A reply's last token is said and not run,
/// so it counts among the next turn's new tokens.
inline void chat(const visit& at, const conversation& talk) {
    tokens history = at.of.fresh(talk.system);
    sequence alone = at.of.pages().open();
    std::optional<sequence> said;
    for (std::size_t turn = 1; turn <= talk.turns; ++turn) {
        const std::size_t known = said ? said->size() : 0;
        detail::append(history, at.of.fresh(talk.around + talk.user));
        const std::size_t length = history.size();
        said.reset();

        auto warm = detail::ask(at.through, history);
        if (warm.fed.reused != known)
            throw std::runtime_error("the cache forgot the conversation");
        const double bound = detail::run_alone(at.through, alone, at.of.fresh(length - known));
        const double cold = detail::ask(at.through, at.of.fresh(length)).seconds;

        const std::string name = (turn < 10 ? "_turn_0" : "_turn_") + std::to_string(turn);
        at.time("chat_warm" + name, warm.seconds, "chat_bound" + name);
        at.time("chat_bound" + name, bound,
                [&of = at.of, &most = at.most, length, known] { return of.bound(most, length - known, known); });
        at.time("chat_cold" + name, cold, [&of = at.of, &most = at.most, length] { return of.bound(most, length, 0); });

        const tokens reply = at.of.fresh(talk.reply);
        const auto ran = std::span(reply).first(talk.reply - 1);
        static_cast<void>(must(at.through.extend(warm.fed.sequence, ran, kvcache::logits_of::none)));
        static_cast<void>(must(at.through.extend(alone, ran, kvcache::logits_of::none)));
        detail::append(history, reply);
        said = std::move(warm.fed.sequence);
    }
}

/// The bound of a chat that somebody else holds, turn by turn: reads `NEW REPLY` from standard input, writes how many
/// milliseconds so many new tokens take to the first token, and runs a reply of so many tokens behind them. A new
/// conversation begins with `0 0`.
inline void paced_bound(subject& of, pipeline& through) {
    sequence alone = of.pages().open();
    for (std::size_t fresh = 0, reply = 0; std::scanf("%zu %zu", &fresh, &reply) == 2;) {
        if (fresh == 0) {
            alone = of.pages().open();
            continue;
        }
        std::printf("%.3f\n", 1e3 * detail::run_alone(through, alone, of.fresh(fresh)));
        std::fflush(stdout);
        if (reply > 0)
            static_cast<void>(must(through.extend(alone, of.fresh(reply), kvcache::logits_of::none)));
    }
}

/// Forward passes over pages that belong to nobody: no index is asked, and none is told.
class uncached {
public:
    uncached(subject& of, kvcache::team& threads)
        : of_(of),
          pass_(of.model().passes<cache::lease>(threads)),
          logits_(1, static_cast<Eigen::Index>(of.model().vocabulary())) {}

    /// The prompt's first token, and then its pages are let go.
    std::size_t ask(const tokens& prompt) {
        sequence nothing = of_.pages().open();
        auto lease = must(of_.pages().reserve(nothing, prompt.size()));
        for (std::size_t row = 0; row < prompt.size();) {
            const std::size_t n = std::min(prompt.size() - row, of_.split());
            const bool last = row + n == prompt.size();
            const kvcache::batch_part<cache::lease> part{&lease, row, std::span(prompt).subspan(row, n),
                                                         last ? kvcache::logits_of::last : kvcache::logits_of::none};
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

/// A prompt that the cache knows nothing of, through it and past it: the limit is the forward passes alone.
inline void zero_reuse(const visit& at, std::size_t length) {
    uncached alone(at.of, at.threads);
    const auto with = [&] { return detail::ask(at.through, at.of.fresh(length)).seconds; };
    const auto without = [&] {
        const tokens prompt = at.of.fresh(length);
        const stopwatch watch;
        alone.ask(prompt);
        return watch.seconds();
    };
    const std::string name = "zero_reuse_" + std::to_string(length);
    static_cast<void>(with()), static_cast<void>(without()); // each makes room
    for (const bool first : {true, false, false, true}) {
        const double before = first ? with() : 0.0, plain = without();
        at.time(name, first ? before : with(), name + "_no_cache");
        at.time(name + "_no_cache", plain,
                [&of = at.of, &most = at.most, length] { return of.bound(most, length, 0); });
    }
}

/// Users that come one after the other with one system prompt and words of their own: milliseconds to the first token
/// of those after the first, and of one whom nobody prepared.
inline void shared_system(const visit& at, std::size_t system, std::size_t own, std::size_t users) {
    const tokens common = at.of.fresh(system);
    const auto prompt = [&](tokens begin) {
        detail::append(begin, at.of.fresh(own));
        return begin;
    };
    const double cold = detail::ask(at.through, prompt(common)).seconds;
    for (std::size_t user = 1; user < users; ++user)
        at.time("shared_system_warm", detail::ask(at.through, prompt(common)).seconds,
                [&of = at.of, &most = at.most, system, own] { return of.bound(most, own, system); });
    at.time("shared_system_cold", cold,
            [&of = at.of, &most = at.most, system, own] { return of.bound(most, system + own, 0); });
}

/// The orders in which the prompts of permuted_documents name their documents.
inline constexpr std::array<std::array<std::size_t, 4>, 6> document_orders{
    {{0, 1, 2, 3}, {0, 1, 3, 2}, {1, 0, 2, 3}, {0, 2, 1, 3}, {1, 0, 3, 2}, {0, 1, 2, 3}}};

/// Questions about the same documents in other orders: only a common beginning is reused. Milliseconds to the first
/// tokens of all of them, and of as many whose documents are all new.
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
        warm += detail::ask(at.through, prompt(stored, order)).seconds;
        cold += detail::ask(at.through, prompt(documents(), order)).seconds;
    }
    const std::size_t length = system + 4 * document + question;
    const auto bound = [&of = at.of, &most = at.most, length] {
        return static_cast<double>(document_orders.size()) * of.bound(most, length, 0);
    };
    at.time("permuted_documents_warm", warm, [&of = at.of, &most = at.most, system, document, question, length] {
        // What an exact prefix leaves to run: all, two documents, all behind the system prompt, three, two, none.
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
