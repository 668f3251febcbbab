// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/tier_prefetch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Drafts the continuation of a text by prompt lookup (Saxena 2023, prompt lookup decoding). Finds the latest earlier
/// occurrence of the last three tokens, else of the last two, else of the last one. Returns: the tokens after that
/// occurrence, at most `most`, as a view of the text. Cost: O(tokens).
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

namespace detail {

/// An answer being generated: its tokens, and the sequence that holds the first of them.
template <class Cache>
struct engine_slot {
    std::vector<token_id> tokens = {}; // prompt, then the answer so far
    std::optional<typename Cache::sequence> sequence = {};
    sampler sampling = {};
    token_counts counts = {};
    std::optional<finish_reason> ended = {};

    // Rows of the current step.
    std::size_t rows = 0;               // number of tokens
    std::vector<token_id> drafted = {}; // the last token and the drafted tokens after it; empty without a draft

    [[nodiscard]] std::size_t held() const { return sequence ? sequence->size() : 0; }
    [[nodiscard]] std::size_t pending() const { return tokens.size() - held(); }
    [[nodiscard]] bool active() const { return !ended && sequence.has_value(); }

    /// Rows of the step that has just run.
    std::size_t run_rows = 0;

    /// Returns the tokens that run in this step.
    [[nodiscard]] std::span<const token_id> run() const {
        return drafted.empty() ? std::span(tokens).subspan(held(), rows) : std::span<const token_id>(drafted);
    }
};

/// A running request.
template <class Cache>
struct engine_job {
    request_id id = {};
    engine_request<Cache> request = {};
    std::size_t most = 0; // maximum tokens of an answer
    std::vector<engine_slot<Cache>> slots = {};
    engine_outcome<Cache> outcome = {};
    bool counted = false;                             // `reused` is recorded
    typename tier_prefetch<Cache>::ticket ahead = {}; // the prefetch it waits for

    engine_job(request_id name, engine_request<Cache> asked, std::size_t max_positions)
        : id(name), request(std::move(asked)) {
        most = std::min(request.stop.max_tokens, max_positions - request.prompt.size() + 1);
        slots.resize(request.choices);
        if (request.score_prompt && !request.prompt.empty())
            outcome.prompt.push_back({.token = request.prompt.front()});
        for (auto& slot : slots) {
            slot.tokens = request.prompt;
            slot.sampling = request.sampling;
            slot.sampling.choice += static_cast<std::uint64_t>(&slot - slots.data());
            if (request.sampling.penalises())
                slot.counts = token_counts(request.prompt);
        }
    }

    [[nodiscard]] std::size_t generated(const engine_slot<Cache>& slot) const {
        return slot.tokens.size() - request.prompt.size();
    }
    [[nodiscard]] bool over() const {
        return ranges::all_of(slots, [](const auto& slot) { return slot.ended.has_value(); });
    }
    /// Returns whether an answer takes its prompt from the first answer, once that has run it.
    [[nodiscard]] bool follows(std::size_t choice) const { return choice > 0 && generated(slots[choice]) == 0; }

    /// Whether an answer runs the prompt to score it.
    [[nodiscard]] bool scores_prompt(std::size_t choice) const {
        return request.score_prompt && choice == 0 && outcome.prompt.size() < request.prompt.size();
    }
    /// Scores tokens of the prompt with the logits of `rows` rows from position `before` on, the first of which is row
    /// `first`.
    void score_prompt(const matrix& logits, std::size_t first, std::size_t before, std::size_t rows) {
        for (std::size_t i = 0; i < rows && scores_prompt(0); ++i) {
            generated_token token{.index = before + i + 1};
            if (token.index != outcome.prompt.size())
                continue; // scored before a preemption
            if (auto finite = detail::check_finite(row_of(logits, first + i)); !finite)
                return fail(finite.error());
            token.token = request.prompt[token.index];
            score(token, row_of(logits, first + i));
            outcome.prompt.push_back(std::move(token));
        }
    }

    void end(finish_reason why) {
        for (auto& slot : slots)
            if (!slot.ended)
                slot.ended = why;
    }
    void fail(error reason) {
        end(finish_reason::failed);
        if (!outcome.failure)
            outcome.failure = std::move(reason);
    }

    /// Drafts the next tokens of a slot, at most `rows`.
    void draft(engine_slot<Cache>& slot, std::size_t rows) const {
        slot.drafted.clear();
        const std::size_t left = most - generated(slot); // the last of them is never run
        if (request.draft == 0 || left < 2)
            return;
        const auto guess = prompt_lookup(slot.tokens, std::min({request.draft, rows, left - 1}));
        if (guess.empty())
            return;
        slot.drafted.push_back(slot.tokens.back());
        slot.drafted.insert(slot.drafted.end(), guess.begin(), guess.end());
    }

    /// Handles the logits of a slot after its rows have run. Row `first` of `logits` is the first one requested for
    /// the slot.
    void sample(std::size_t choice, const matrix& logits, std::size_t first) {
        auto& slot = slots[choice];
        const std::size_t drafts = slot.drafted.empty() ? 0 : slot.drafted.size() - 1;
        const std::vector<token_id> guess = std::exchange(slot.drafted, {});
        if (slot.held() < slot.tokens.size())
            return; // the prompt continues in a later step
        outcome.drafted += drafts;
        for (std::size_t i = 0; i <= drafts; ++i) {
            say(choice, row_of(logits, first + i));
            if (slot.ended || i == drafts || slot.tokens.back() != guess[i + 1])
                break;
            ++outcome.accepted;
        }
        if (slot.held() >= slot.tokens.size() && generated(slot) > 0)
            slot.sequence->truncate(slot.tokens.size() - 1);
    }

    /// Delivers the outcome of a request that has ended.
    void tell() {
        for (auto& slot : slots) {
            if (slot.held() > slot.tokens.size())
                slot.sequence->truncate(slot.tokens.size()); // drafted tokens of a cancelled step
            const auto answer = std::span(std::as_const(slot.tokens)).subspan(request.prompt.size());
            outcome.answers.push_back({{answer.begin(), answer.end()}, *slot.ended, std::move(slot.sequence)});
        }
        if (request.on_finish)
            request.on_finish(std::move(outcome));
    }

    /// Forks the other answers from the first one, which has run the prompt, and draws their first token.
    void follow(const matrix& logits, std::size_t row) {
        for (std::size_t choice = 1; choice < slots.size(); ++choice)
            if (follows(choice) && !slots[choice].ended) {
                slots[choice].sequence = slots[0].sequence->fork(request.prompt.size());
                say(choice, row_of(logits, row));
            }
    }

private:
    void score(generated_token& token, std::span<const float> logits) const {
        const kvcache::log_probabilities scores(logits);
        token.log_probability = scores.of(token.token);
        token.top = scores.top(request.log_probabilities.value_or(0));
    }

    // Draws the next token of a slot and reports it to `on_token`.
    void say(std::size_t choice, std::span<const float> logits) {
        auto& slot = slots[choice];
        if (generated(slot) == most) {
            slot.ended = finish_reason::length;
            return;
        }
        if (auto finite = detail::check_finite(logits); !finite) {
            fail(finite.error());
            return;
        }
        generated_token token{.choice = choice, .index = generated(slot)};
        token.token = slot.sampling.draw(logits, token.index, slot.counts);
        if (slot.sampling.penalises())
            slot.counts.add(token.token);
        if (request.log_probabilities)
            score(token, logits);
        slot.tokens.push_back(token.token);
        const token_action action = request.on_token ? request.on_token(token) : token_action::go_on;
        if (action == token_action::cancel)
            end(finish_reason::cancelled);
        else if (action == token_action::enough ||
                 ranges::find(request.stop.stop_tokens, token.token) != request.stop.stop_tokens.end())
            slot.ended = finish_reason::stopped;
        else if (generated(slot) == most)
            slot.ended = finish_reason::length;
    }
};

}
}} // namespace kvcache::detail

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// The running requests, and the batch of each forward pass. Not thread-safe.
template <class Cache, class Model>
class engine_schedule {
public:
    using job = engine_job<Cache>;
    using job_list = std::deque<std::unique_ptr<job>>; // in order of arrival

    engine_schedule(Cache& cache, const Model& model, pipeline<Cache, Model>& pipeline, std::size_t rows)
        : cache_(cache), model_(model), pipeline_(pipeline), rows_(rows) {}

    [[nodiscard]] job_list& running() noexcept { return running_; }
    /// Requests that were preempted and wait.
    [[nodiscard]] job_list& preempted() noexcept { return made_way_; }
    [[nodiscard]] std::size_t page_tokens() const { return cache_.shape().tokens; }
    /// Requires: requests of this tenant can run over the cache.
    void require_tenant(const tenant& of) const { static_cast<void>(cache_.core().number_of(of)); }
    void set_relief(std::function<bool()> relief) { relief_ = std::move(relief); }

    /// Runs one step. If pages are short it first reclaims idle sessions, then preempts the youngest request.
    void run() {
        while (true) {
            std::optional<error> short_of;
            try {
                if (!plan())
                    return;
                if (auto ran = pipeline_.extend(batch_, logits_); !ran)
                    short_of = ran.error();
            } catch (const std::bad_alloc&) {
                short_of = no_memory();
            }
            if (!short_of)
                return sample();
            if (short_of->code == error_code::out_of_memory && relief_ && relief_())
                continue;
            preempt(std::move(*short_of));
        }
    }

private:
    using slot = engine_slot<Cache>;
    struct part {
        job* of = nullptr;
        std::size_t choice = 0;
        std::size_t wanted = 0; // rows of logits
    };

    // Plans the batch of a step. Returns false if there is nothing to run.
    [[nodiscard]] bool plan() {
        parts_.clear();
        batch_.clear();
        std::size_t left = rows_;
        const auto each_answer = [&](auto&& body) {
            for (std::size_t i = 0; i < running_.size(); ++i) {
                job& each = *running_[(i + turn_) % running_.size()];
                for (std::size_t c = 0; c < each.slots.size(); ++c)
                    if (each.slots[c].active() && each.slots[c].pending() == 1)
                        body(each, c);
            }
        };
        // A quarter of the rows is reserved for prompts, so that decoding cannot starve them.
        const bool prompts = ranges::any_of(running_, [](const auto& each) {
            return ranges::any_of(each->slots, [](const slot& l) { return !l.ended && l.pending() > 1; });
        });
        std::size_t for_answers = prompts ? left - std::max<std::size_t>(1, left / 4) : left, answers = 0;
        each_answer([&](job&, std::size_t) { ++answers; });
        each_answer([&](job& each, std::size_t c) {
            if (for_answers == 0)
                return;
            --answers;
            slot& one = each.slots[c];
            const std::size_t spare = for_answers - 1 > answers ? for_answers - 1 - answers : 0;
            one.rows = 1;
            each.draft(one, std::min(spare, model_.max_positions() - one.tokens.size()));
            const std::size_t rows = one.run().size();
            add(each, c, rows);
            for_answers -= rows;
            left -= rows;
        });
        ++turn_;
        for (auto& each : running_)
            for (std::size_t c = 0; c < each->slots.size() && left > 0; ++c) {
                slot& one = each->slots[c];
                if (one.ended || each->follows(c) || (!one.sequence && !start(*each, c)) ||
                    (one.pending() == 1 && in_batch(one)))
                    continue;
                one.rows = std::min(left, one.pending());
                one.drafted.clear();
                add(*each, c, each->scores_prompt(c) ? one.rows : one.rows == one.pending() ? 1 : 0);
                left -= one.rows;
            }
        return !batch_.empty();
    }

    void add(job& each, std::size_t choice, std::size_t wanted) {
        slot& one = each.slots[choice];
        one.run_rows = one.run().size();
        parts_.push_back({&each, choice, wanted});
        batch_.push_back({&*one.sequence, one.run(),
                          wanted == 0   ? logits_mode::none
                          : wanted == 1 ? logits_mode::last
                                        : logits_mode::all});
    }

    [[nodiscard]] bool in_batch(const slot& one) const {
        return ranges::any_of(batch_, [&](const auto& each) { return each.sequence == &*one.sequence; });
    }

    // Gives a slot the longest available prefix of its tokens: from the request's own sequence, the cache, or another
    // slot. Returns false while another slot is computing a longer one.
    [[nodiscard]] bool start(job& each, std::size_t choice) {
        slot& one = each.slots[choice];
        if (each.scores_prompt(choice)) { // which takes the logits of all its rows
            one.sequence = cache_.open(each.request.tenant);
            each.request.known.reset();
            return each.counted = true;
        }
        // The tier was read ahead if possible, so only memory is searched then.
        auto& core = cache_.core();
        auto found = core.find(core.number_of(each.request.tenant), one.tokens, true, !prefetches<Cache>).sequence;
        auto& given = each.request.known;
        const bool own = given && given->size() >= found.size() && given->size() < one.tokens.size();
        const std::size_t known = own ? given->size() : found.size();
        const slot* nearest = nullptr;
        std::size_t held = known, coming = known; // tokens in common
        for (const auto& other : running_)
            for (const slot& its : other->slots) {
                if (other->request.tenant != each.request.tenant)
                    break;
                if (&its == &one || !its.active())
                    continue;
                const std::size_t common = in_common(its, one);
                if (std::min(common, shared(its.held())) > held) {
                    held = std::min(common, shared(its.held()));
                    nearest = &its;
                }
                if (its.pending() > 1)
                    coming = std::max(coming, common);
            }
        // Waiting costs one step, so it must save a page or most of the remaining tokens.
        if (coming > held && (coming - held >= cache_.shape().tokens || 2 * coming >= held + one.tokens.size()))
            return false;
        if (nearest != nullptr)
            one.sequence = nearest->sequence->fork(held);
        else
            one.sequence = own ? std::move(*given) : std::move(found);
        given.reset();
        if (!each.counted)
            each.outcome.reused = std::min(held, each.request.prompt.size());
        each.counted = true;
        return true;
    }

    // Returns how many of `n` tokens another sequence can continue from: whole pages if the codec encodes whole
    // pages.
    [[nodiscard]] std::size_t shared(std::size_t n) const {
        return page_writer<typename Cache::codec_type> ? n - n % cache_.shape().tokens : n;
    }

    // Returns how many tokens `one` can take from `its`: their common prefix, without the last token of `one`, which
    // always runs.
    [[nodiscard]] std::size_t in_common(const slot& its, const slot& one) const {
        const auto same = ranges::mismatch(its.tokens, one.tokens);
        return shared(std::min({static_cast<std::size_t>(same.in2 - one.tokens.begin()), one.tokens.size() - 1,
                                its.sequence->cacheable_limit()}));
    }

    [[nodiscard]] static error no_memory() {
        return {error_code::out_of_memory, "memory", "the system has not that much memory"};
    }

    // Distributes the logits of a step. If memory is short, the requests of the step fail.
    void sample() {
        try {
            hand_out();
        } catch (const std::bad_alloc&) {
            for (const part& one : parts_)
                one.of->fail(no_memory());
        }
    }

    void hand_out() {
        std::size_t row = 0;
        for (const part& one : parts_) {
            slot& heard = one.of->slots[one.choice];
            const std::size_t before = heard.held() - heard.run_rows;
            const std::size_t prompt = one.of->request.prompt.size();
            one.of->outcome.prefilled += std::min(heard.held(), prompt) - std::min(before, prompt);
            const bool first = one.choice == 0 && heard.held() >= prompt && one.of->generated(heard) == 0;
            if (one.wanted > 0 && one.of->scores_prompt(one.choice))
                one.of->score_prompt(logits_, row, before, one.wanted);
            const std::size_t drawn = std::max<std::size_t>(1, heard.drafted.size()); // rows that tokens are drawn from
            const std::size_t from = row + one.wanted - std::min(drawn, one.wanted);
            if (!heard.ended)
                one.of->sample(one.choice, logits_, from);
            if (first)
                one.of->follow(logits_, from);
            row += one.wanted;
        }
    }

    // Preempts the youngest request: it gives back its pages and waits. If it is alone, it fails.
    void preempt(error reason) {
        const auto youngest = ranges::max_element(running_, {}, [](const auto& each) {
            return ranges::any_of(each->slots, &slot::active) ? index(each->id) + 1 : 0;
        });
        const auto holders =
            ranges::count_if(running_, [](const auto& each) { return ranges::any_of(each->slots, &slot::active); });
        expects(youngest != running_.end(), "a step that failed had requests");
        if (reason.code != error_code::out_of_memory || holders < 2) {
            (*youngest)->fail(std::move(reason));
            for (slot& one : (*youngest)->slots)
                one.sequence.reset();
            return;
        }
        for (slot& one : (*youngest)->slots)
            if (!one.ended)
                one.sequence.reset();
        made_way_.push_back(std::move(*youngest));
        running_.erase(youngest);
    }

    [[nodiscard]] static std::uint64_t index(request_id id) noexcept { return static_cast<std::uint64_t>(id); }

    Cache& cache_;
    const Model& model_;
    pipeline<Cache, Model>& pipeline_;
    std::size_t rows_;
    std::function<bool()> relief_;
    job_list running_;
    job_list made_way_;
    std::vector<part> parts_;
    std::vector<batch_entry<Cache>> batch_;
    matrix logits_; // (requested rows, vocabulary)
    std::size_t turn_ = 0;
};

} // namespace detail

}} // namespace kvcache
