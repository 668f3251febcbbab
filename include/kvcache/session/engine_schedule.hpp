// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/session/client_shares.hpp>
#include <kvcache/session/engine_job.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/reuse_mode.hpp>
#include <kvcache/session/selective_prefill.hpp>
#include <kvcache/session/tier_prefetch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// What an engine owns to select tokens of chunks by deviation; nothing over a cache without chunks.
template <class Cache, class Model>
struct selective_prefill_of {
    using type = std::nullptr_t;
};
template <knows_chunks Cache, class Model>
struct selective_prefill_of<Cache, Model> {
    using type = std::unique_ptr<selective_prefill<Cache, Model>>;
};

/// The running requests, and the batch of each forward pass. Not thread-safe.
template <class Cache, class Model>
class engine_schedule {
public:
    using job = engine_job<Cache>;
    using job_list = std::deque<std::unique_ptr<job>>; // in order of arrival

    engine_schedule(Cache& cache, const Model& model, pipeline<Cache, Model>& pipeline, const engine_limits& limits)
        : cache_(cache),
          model_(model),
          pipeline_(pipeline),
          most_rows_(limits.max_batch_tokens),
          rows_(limits.max_batch_tokens),
          patience_(limits.patience) {}

    [[nodiscard]] job_list& running() noexcept { return running_; }
    /// Rows of all steps.
    [[nodiscard]] std::size_t rows() const noexcept { return ran_; }
    /// Requests that were preempted and wait.
    [[nodiscard]] job_list& preempted() noexcept { return made_way_; }
    /// The answers that each client has under way.
    [[nodiscard]] client_counts answers() const {
        client_counts made;
        for (const auto& each : running_)
            made.add(each->request.client, each->slots.size());
        return made;
    }
    /// Preempts the last request of a client (engine_job::goes_before), and returns the number of its answers.
    /// Requires: it has one.
    std::size_t make_way(std::uint64_t client) {
        auto last = running_.end();
        for (auto at = running_.begin(); at != running_.end(); ++at)
            if ((*at)->request.client == client && (last == running_.end() || (*last)->goes_before(**at)))
                last = at;
        expects(last != running_.end(), "a client that makes way has a request");
        const std::size_t answers = (*last)->slots.size();
        give_way(last);
        return answers;
    }
    [[nodiscard]] std::size_t page_tokens() const { return cache_.shape().tokens; }
    /// Requires: requests of this tenant can run over the cache.
    void require_tenant(const tenant& of) const { static_cast<void>(cache_.core().number_of(of)); }
    void set_relief(std::function<bool()> relief) { relief_ = std::move(relief); }
    /// Sets how many rows a step runs, at most.
    void limit_rows(std::size_t most) noexcept { rows_ = std::min(most, most_rows_); }

    /// Runs one step. If pages are short it first reclaims idle sessions, then preempts (see preempt).
    void run() {
        while (true) {
            std::optional<error> short_of;
            try {
                const auto planned = plan();
                if (planned && !*planned)
                    return;
                const auto ran = planned ? pipeline_.extend(batch_, logits_) : result<void>(planned.error());
                if (!ran)
                    short_of = ran.error();
            } catch (const std::bad_alloc&) {
                short_of = no_memory();
            }
            if (!short_of) {
                ran_ += planned_;
                count_rows();
                return sample();
            }
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
        bool prompt = false;    // its rows are of a prompt
    };

    // Plans the batch of a step. Returns false if there is nothing to run. Errors: no pages for chunks.
    [[nodiscard]] result<bool> plan() {
        parts_.clear();
        batch_.clear();
        planned_ = 0;
        std::size_t left = rows_;
        // A quarter of the rows is reserved for prompts, so that decoding cannot starve them.
        const bool prompts = ranges::any_of(running_, [](const auto& each) {
            return ranges::any_of(each->slots, [](const slot& l) { return !l.ended && l.pending() > 1; });
        });
        std::size_t for_answers = prompts ? left - std::max<std::size_t>(1, left / 4) : left;
        std::size_t answers = order_answers().size();
        for (const auto& [each, c] : answers_) {
            if (for_answers == 0)
                break;
            --answers;
            slot& one = each->slots[c];
            const std::size_t spare = for_answers - 1 > answers ? for_answers - 1 - answers : 0;
            one.rows = 1;
            if (!pipeline_.has_states()) // a draft in part would cost the states
                each->draft(one, std::min(spare, model_.max_positions() - one.tokens.size()), model_.vocabulary());
            const std::size_t rows = one.run().size();
            add(*each, c, rows);
            for_answers -= rows;
            left -= rows;
        }
        for (job* const each : in_turn())
            for (std::size_t c = 0; c < each->slots.size() && left > 0; ++c) {
                slot& one = each->slots[c];
                if (one.ended || each->follows(c) || (!one.sequence && !start(*each, c)) ||
                    (one.pending() == 1 && in_batch(one)))
                    continue;
                auto last = take_rows(one, left);
                if (!last)
                    return last.error();
                add(*each, c, each->scores_prompt(c) ? one.rows : *last ? 1 : 0);
                parts_.back().prompt = true;
                left -= one.rows;
            }
        return !batch_.empty();
    }

    // The answers that run a row, in the order in which they get one: one of each client, then a second one of each
    // that has more, and so on; those that have waited longest first.
    const std::vector<std::pair<job*, std::size_t>>& order_answers() {
        by_client_.clear();
        for (const auto& each : running_)
            for (std::size_t c = 0; c < each->slots.size(); ++c)
                if (each->slots[c].active() && each->slots[c].pending() == 1)
                    by_client_[each->request.client].push_back({each.get(), c});
        const auto longest_first = [](const auto& one, const auto& other) {
            return one.first->slots[one.second].last_step < other.first->slots[other.second].last_step;
        };
        for (auto& [client, own] : by_client_)
            std::stable_sort(own.begin(), own.end(), longest_first);
        answers_.clear();
        for (std::size_t round = 0, before = 0;; ++round, before = answers_.size()) {
            for (const auto& [client, own] : by_client_)
                if (round < own.size())
                    answers_.push_back(own[round]);
            if (answers_.size() == before)
                break;
            std::stable_sort(answers_.begin() + static_cast<std::ptrdiff_t>(before), answers_.end(), longest_first);
        }
        return answers_;
    }

    // Counts the rows of a step that has run.
    void count_rows() {
        ++steps_;
        for (const part& one : parts_) {
            slot& ran = one.of->slots[one.choice];
            one.of->lacks_pages.reset();
            ran.last_step = steps_;
            if (one.prompt)
                served_.add(one.of->request.client, ran.run_rows);
        }
    }

    // The running requests in the order in which their prompts get rows: those of the client whose prompts have had the
    // fewest first, then in the order of its requests.
    [[nodiscard]] const std::vector<job*>& in_turn() {
        served_.follow(answers());
        turns_.clear();
        std::map<std::uint64_t, request_id> oldest; // by client
        for (const auto& each : running_) {
            turns_.push_back(each.get());
            const auto at = oldest.emplace(each->request.client, each->id).first;
            at->second = std::min(at->second, each->id);
        }
        std::stable_sort(turns_.begin(), turns_.end(), [&](const job* a, const job* b) {
            const std::uint64_t one = a->request.client, other = b->request.client;
            if (one == other)
                return a->goes_before(*b);
            return std::pair(served_.of(one), oldest.at(one)) < std::pair(served_.of(other), oldest.at(other));
        });
        return turns_;
    }

    // Selects the tokens of chunks that run again, for policies that compare them; made when it is first needed.
    [[nodiscard]] auto& selective() requires knows_chunks<Cache> {
        if (!selective_)
            selective_ = std::make_unique<selective_prefill<Cache, Model>>(model_, pipeline_.threads(), most_rows_);
        return *selective_;
    }

    // Takes the next rows of a prompt, at most `most`. Returns whether they are its last ones. Errors: no pages for its
    // chunks.
    [[nodiscard]] result<bool> take_rows(slot& one, std::size_t most) {
        one.drafted.clear();
        one.rows = std::min(most, one.pending());
        if constexpr (knows_chunks<Cache>)
            if (one.splice.active()) {
                if (one.held() < one.splice.first()) {
                    one.rows = std::min(one.rows, one.splice.first() - one.held());
                    return false;
                }
                if (auto placed = one.splice.place(
                        *one.sequence, one.tokens, [&]() -> auto& { return selective(); });
                    !placed)
                    return placed.error();
                if (!one.splice.placed()) // more exact tokens run first
                    return take_rows(one, most);
                one.rows = std::min(most, one.splice.rows().size());
                return one.rows == one.splice.rows().size();
            }
        return one.rows == one.pending();
    }

    void add(job& each, std::size_t choice, std::size_t wanted) {
        slot& one = each.slots[choice];
        one.run_rows = one.run().size();
        planned_ += one.run_rows;
        parts_.push_back({&each, choice, wanted});
        batch_.push_back({&*one.sequence, one.run(),
                          wanted == 0   ? logits_mode::none
                          : wanted == 1 ? logits_mode::last
                                        : logits_mode::all});
        if (one.pending() > 1 || each.generated(one) == 0)
            batch_.back().snapshots = &one.snapshots;
        if constexpr (knows_chunks<Cache>)
            if (one.splice.placed()) {
                batch_.back().open = &one.splice.lease();
                batch_.back().rows = one.splice.rows().first(one.rows);
            }
    }

    [[nodiscard]] bool in_batch(const slot& one) const {
        return ranges::any_of(batch_, [&](const auto& each) { return each.sequence == &*one.sequence; });
    }

    // Gives a slot the longest available prefix of its tokens: from the request's own sequence, the cache, or another
    // slot. Returns false while another slot is computing a longer one.
    [[nodiscard]] bool start(job& each, std::size_t choice) {
        slot& one = each.slots[choice];
        if (each.scores_prompt(choice) || each.request.mode == reuse_mode::baseline) { // all rows run
            one.sequence = cache_.open(each.request.tenant);
            each.request.known.reset();
            return each.counted = true;
        }
        // The tier was read ahead if possible, so only memory is searched then.
        auto& core = cache_.core();
        auto match = core.find(core.number_of(each.request.tenant), one.tokens, true, !prefetches<Cache>);
        auto& found = match.sequence;
        auto& given = each.request.known;
        const bool own = given && given->size() >= found.size() && given->size() < one.tokens.size();
        const std::size_t known = own ? given->size() : found.size();
        const slot* nearest = nullptr;
        std::size_t held = known, coming = known; // tokens in common
        for (const auto& other : running_)
            for (const slot& its : other->slots) {
                if (other->request.tenant != each.request.tenant)
                    break;
                if (&its == &one || !its.active() ||
                    its.splice.placed()) // its lease is open, and what comes approximate
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
        one.snapshots = pipeline_.snapshots_in(match.found);
        if (nearest != nullptr)
            one.sequence = nearest->sequence->fork(held);
        if (nearest == nullptr || one.held() < known) // layers with states continue where a fork has theirs
            one.sequence = own ? std::move(*given) : std::move(found);
        given.reset();
        if constexpr (knows_chunks<Cache>)
            if (each.request.mode == reuse_mode::chunks && one.sequence->exact() == one.sequence->size())
                static_cast<void>(detail::completes<std::bad_alloc>([&] { // without memory the prompt is computed
                    one.splice.find(cache_, *one.sequence, one.tokens, each.request.recompute);
                }));
        if (!each.counted)
            each.outcome.reused = std::min(one.held(), each.request.prompt.size());
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
            const bool spliced = heard.splice.placed();
            if (spliced)
                end_splice(*one.of, heard);
            const std::size_t before = heard.held() - std::min(heard.held(), heard.run_rows);
            const std::size_t prompt = one.of->request.prompt.size();
            if (!spliced)
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

    // Counts the rows that have run of a spliced lease, and commits it after the last one.
    void end_splice([[maybe_unused]] job& of, [[maybe_unused]] slot& one) {
        if constexpr (knows_chunks<Cache>) {
            of.outcome.prefilled += one.run_rows;
            const std::size_t approximate = one.splice.approximate(), recomputed = one.splice.recomputed();
            if (!one.splice.ran(one.run_rows, one.tokens))
                return;
            of.outcome.prefilled -= std::min(of.outcome.prefilled, recomputed);
            of.outcome.approximate = approximate;
            of.outcome.recomputed = recomputed;
        }
    }

    // Preempts the last request of a client that has the most answers: it gives back its pages and waits. If it is
    // alone, it goes on without chunks, waits for the host, or fails. So some request always goes on.
    void preempt(error reason) {
        client_counts holding;
        for (const auto& each : running_)
            if (const auto active = ranges::count_if(each->slots, &slot::active); active > 0)
                holding.add(each->request.client, static_cast<std::size_t>(active));
        const std::size_t most = holding.most().second;
        auto last = running_.end();
        for (auto at = running_.begin(); at != running_.end(); ++at)
            if (holding.of((*at)->request.client) == most && ranges::any_of((*at)->slots, &slot::active) &&
                (last == running_.end() || goes_later(**at, **last)))
                last = at;
        const auto holders =
            ranges::count_if(running_, [](const auto& each) { return ranges::any_of(each->slots, &slot::active); });
        if (last == running_.end()) // none has a sequence yet
            last = std::prev(running_.end());
        if (holders > 1)
            (*last)->lacks_pages.reset();
        if (reason.code == error_code::out_of_memory && holders < 2 &&
            ((reason.field == "share" && make_room()) || give_up_chunks(**last)))
            return;
        if (reason.code != error_code::out_of_memory || (holders < 2 && !waits(**last))) {
            (*last)->fail(std::move(reason));
            for (slot& one : (*last)->slots)
                one.release();
            return;
        }
        give_way(last);
    }

    // Takes the chunks from a request that runs alone: they are held with it, and without them their pages are free.
    // Returns whether it had any; it is computed then.
    [[nodiscard]] static bool give_up_chunks(job& alone) {
        if (alone.request.mode != reuse_mode::chunks)
            return false;
        alone.request.mode = reuse_mode::prefix;
        for (slot& one : alone.slots)
            if (!one.ended)
                one.release();
        return true;
    }

    // Whether a request that runs alone waits for pages once more.
    [[nodiscard]] bool waits(job& alone) const {
        const auto now = std::chrono::steady_clock::now();
        if (!alone.lacks_pages)
            alone.lacks_pages = now;
        return now - *alone.lacks_pages < patience_;
    }

    // Evicts pages of any tenant for a request that runs alone: fair tenants keep theirs from those that have more, not
    // from one that could not run at all. Returns whether there were any.
    [[nodiscard]] bool make_room() {
        auto& core = cache_.core();
        const std::lock_guard guard(core.lock());
        auto& pages = core.pages();
        const std::size_t before = pages.pool().free().size();
        static_cast<void>(pages.keep_free(before + rows_ / page_tokens() + 2));
        return pages.pool().free().size() > before;
    }

    // Whether a request is given up before another one: the last of a client; of two clients' the one that came later.
    [[nodiscard]] static bool goes_later(const job& one, const job& other) {
        return one.request.client == other.request.client ? other.goes_before(one) : one.id > other.id;
    }

    // Takes a request off the running ones; it keeps its place in the order of arrival.
    void give_way(typename job_list::iterator request) {
        for (slot& one : (*request)->slots)
            if (!one.ended)
                one.release();
        made_way_.push_back(std::move(*request));
        running_.erase(request);
    }

    Cache& cache_;
    const Model& model_;
    pipeline<Cache, Model>& pipeline_;
    std::size_t most_rows_; // of any step
    std::size_t rows_;      // of this one, at most
    std::chrono::steady_clock::duration patience_;
    std::function<bool()> relief_;
    job_list running_;
    job_list made_way_;
    std::vector<part> parts_;
    std::vector<batch_entry<Cache>> batch_;
    matrix logits_; // (requested rows, vocabulary)
    std::size_t steps_ = 0;
    std::vector<std::pair<job*, std::size_t>> answers_; // that run a row, in their order
    std::map<std::uint64_t, std::vector<std::pair<job*, std::size_t>>> by_client_;
    std::size_t planned_ = 0, ran_ = 0; // rows of this step, and of all
    served_rows served_;
    std::vector<job*> turns_;
    typename selective_prefill_of<Cache, Model>::type selective_;
};

} // namespace detail

}} // namespace kvcache
