// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/session/engine_job.hpp>
#include <kvcache/session/engine_request.hpp>
#include <kvcache/session/pipeline.hpp>

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
    [[nodiscard]] std::size_t page_tokens() const noexcept { return cache_.shape().tokens; }
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
    using lane = engine_slot<Cache>;
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
        const auto lanes_do = [&](auto&& body) {
            for (std::size_t i = 0; i < running_.size(); ++i) {
                job& each = *running_[(i + turn_) % running_.size()];
                for (std::size_t c = 0; c < each.lanes.size(); ++c)
                    if (each.lanes[c].active() && each.lanes[c].pending() == 1)
                        body(each, c);
            }
        };
        // A quarter of the rows is reserved for prompts, so that decoding cannot starve them.
        const bool prompts = std::ranges::any_of(running_, [](const auto& each) {
            return std::ranges::any_of(each->lanes, [](const lane& l) { return !l.ended && l.pending() > 1; });
        });
        std::size_t for_answers = prompts ? left - std::max<std::size_t>(1, left / 4) : left, answers = 0;
        lanes_do([&](job&, std::size_t) { ++answers; });
        lanes_do([&](job& each, std::size_t c) {
            if (for_answers == 0)
                return;
            --answers;
            lane& one = each.lanes[c];
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
            for (std::size_t c = 0; c < each->lanes.size() && left > 0; ++c) {
                lane& one = each->lanes[c];
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
        lane& one = each.lanes[choice];
        one.run_rows = one.run().size();
        parts_.push_back({&each, choice, wanted});
        batch_.push_back({&*one.sequence, one.run(),
                          wanted == 0   ? logits_mode::none
                          : wanted == 1 ? logits_mode::last
                                        : logits_mode::all});
    }

    [[nodiscard]] bool in_batch(const lane& one) const {
        return std::ranges::any_of(batch_, [&](const auto& each) { return each.sequence == &*one.sequence; });
    }

    // Gives a slot the longest available prefix of its tokens: from the request's own sequence, the cache, or another
    // slot. Returns false while another slot is computing a longer one.
    [[nodiscard]] bool start(job& each, std::size_t choice) {
        lane& one = each.lanes[choice];
        if (each.scores_prompt(choice)) { // which takes the logits of all its rows
            one.sequence = each.request.tenant ? each.request.tenant->open() : cache_.open();
            each.request.known.reset();
            return each.counted = true;
        }
        auto found = each.request.tenant ? match(*each.request.tenant, one.tokens) : match(cache_, one.tokens);
        const compute_range plan = cache_.plan(found);
        auto& given = each.request.known;
        const bool own = given && given->size() >= plan.first && given->size() < one.tokens.size();
        const std::size_t known = own ? given->size() : plan.first;
        const lane* nearest = nullptr;
        std::size_t held = known, coming = known; // tokens in common
        for (const auto& other : running_)
            for (const lane& its : other->lanes) {
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
            one.sequence = own ? std::move(*given) : cache_.open(std::move(found), plan);
        given.reset();
        if (!each.counted)
            each.outcome.reused = std::min(held, each.request.prompt.size());
        each.counted = true;
        return true;
    }

    // The tier was read ahead if possible, so only memory is searched then.
    template <class View>
    [[nodiscard]] static typename Cache::match_type match(View& view, std::span<const token_id> tokens) {
        if constexpr (prefetches<Cache>)
            return view.match_in_memory(tokens);
        else
            return view.match(tokens);
    }

    // Returns how many of `n` tokens another sequence can continue from: whole pages if the codec encodes whole
    // pages.
    [[nodiscard]] std::size_t shared(std::size_t n) const {
        return page_writer<typename Cache::codec_type> ? n - n % cache_.shape().tokens : n;
    }

    // Returns how many tokens `one` can take from `its`: their common prefix, without the last token of `one`, which
    // always runs.
    [[nodiscard]] std::size_t in_common(const lane& its, const lane& one) const {
        const auto same = std::ranges::mismatch(its.tokens, one.tokens);
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
            lane& heard = one.of->lanes[one.choice];
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
        const auto youngest = std::ranges::max_element(running_, {}, [](const auto& each) {
            return std::ranges::any_of(each->lanes, &lane::active) ? index(each->id) + 1 : 0;
        });
        const auto holders = std::ranges::count_if(
            running_, [](const auto& each) { return std::ranges::any_of(each->lanes, &lane::active); });
        expects(youngest != running_.end(), "a step that failed had requests");
        if (reason.code != error_code::out_of_memory || holders < 2) {
            (*youngest)->fail(std::move(reason));
            for (lane& one : (*youngest)->lanes)
                one.sequence.reset();
            return;
        }
        for (lane& one : (*youngest)->lanes)
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

}}} // namespace kvcache::detail
