// SPDX-License-Identifier: MIT
#pragma once

// A prefix cache under llama.cpp, for programs that embed libllama: through the public functions of llama.h alone.
// Tried with llama.cpp of October 2026 (llama-cpp-python 0.3.36).

#include <kvcache/adapters/llama/batch.hpp>
#include <kvcache/adapters/llama/identity.hpp>
#include <kvcache/adapters/llama/state.hpp>
#include <kvcache/cache/blobs.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/group_leases.hpp>
#include <kvcache/cache/owned_blocks.hpp>
#include <kvcache/cache/snapshot_places.hpp>
#include <kvcache/codec/opaque.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/layers/grouped.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <llama.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// How a llama_prefix_cache is opened.
struct llama_cache_options {
    std::size_t bytes = std::size_t{1} << 30; ///< Memory for what is kept of prompts.
    std::uint32_t page_tokens = 64;           ///< Tokens of a page, the unit that is stored and evicted.
    /// The model's file, whose digest becomes part of the identity. Without it, models with the same metadata and size
    /// are told apart by what they compute for a few tokens. Of a model in several files, the first.
    std::filesystem::path model = {};
    /// The settings that the context was made with: those that change keys and values become part of the identity.
    llama_context_params settings = llama_context_default_params();
    std::string adapters = {}; ///< Names, versions and scales of the LoRA adapters and control vectors that are set.
    /// Tokens between two snapshots of a recurrent state in a prompt, in whole pages: an edit evaluates at most so many
    /// before it again.
    std::size_t snapshot_interval = 512;
    /// Whether decode removes other sequences, those used the longest ago first, where the context has no room. What
    /// they have is stored first; of a recurrent model, what its last snapshot covers.
    bool make_room = true;
};

/// What was done for a prompt.
struct llama_reuse {
    std::size_t tokens = 0;    ///< Tokens of the prompt.
    std::size_t kept = 0;      ///< Of these, tokens that the sequence had already.
    std::size_t restored = 0;  ///< Tokens that came from the cache.
    std::size_t evaluated = 0; ///< Tokens that the model evaluated; of restore, those that are left to evaluate.
    std::string why = {};      ///< Why no more were reused, in one sentence.
};

/// Counters of a llama_prefix_cache.
struct llama_cache_stats {
    std::uint64_t prompts = 0;     ///< Calls of restore, those of decode included.
    std::uint64_t kept_tokens = 0; ///< Tokens that sequences had already.
    std::uint64_t restored_tokens = 0;
    std::uint64_t evaluated_tokens = 0;  ///< By decode.
    std::uint64_t stores = 0;            ///< Times that tokens of a sequence were stored.
    std::uint64_t refused = 0;           ///< Restores that the context refused, for lack of room in most cases.
    std::uint64_t skipped = 0;           ///< Stores for which the cache had no room, or the context no rows any more.
    std::uint64_t removed_sequences = 0; ///< To make room.
};

/// Keeps what a llama_context computes for prompts, and gives it back to prompts that begin alike: after other prompts
/// have filled the context, in other sequences, and with a tier in later processes. Pages are kept of attention and of
/// sliding windows, and snapshots of recurrent states; a tier gets whole pages. What is restored has the bytes that
/// were computed. One thread uses the context and the cache. The last two sequences of the context are the cache's.
/// `Policies`: of the cache, in any order; not a codec, a storage or layers. Requires: the context outlives it.
template <class... Policies>
class llama_prefix_cache {
public:
    using cache_type = kvcache::cache<codec::opaque, layers::grouped, Policies...>;

    /// Evaluates a few tokens, which tell how the memory is laid out and what the context computes. Where the context
    /// cannot be used, `status` says why, and what to change: nothing is reused then. Throws: bad_alloc. Cost: a prompt
    /// of 8 tokens, and with `options.model` a digest of the file when it is new.
    explicit llama_prefix_cache(llama_context* context, llama_cache_options options = {}, Policies... policies)
        : context_(context), options_(std::move(options)), state_(context), batch_(llama_n_batch(context)) {
        status_ = open(std::move(policies)...);
        state_.forget_evidence();
    }
    llama_prefix_cache(const llama_prefix_cache&) = delete;
    llama_prefix_cache& operator=(const llama_prefix_cache&) = delete;
    ~llama_prefix_cache() = default;

    /// Whether the cache works. Errors: unsupported, io, those of open_cache and of reading the model's file.
    [[nodiscard]] const result<void>& status() const noexcept { return status_; }

    /// Makes a sequence hold the first tokens of a prompt, as many as it has or the cache knows, and nothing else. The
    /// last token of the prompt is left to evaluate. Pages are verified and put together apart from the sequence, which
    /// takes them as a whole or not at all. Cost: copies what it restores.
    llama_reuse restore(llama_seq_id sequence, std::span<const llama_token> tokens) {
        read(tokens);
        llama_reuse made = restore(sequence);
        made.evaluated = made.tokens - made.kept - made.restored;
        return made;
    }

    /// Evaluates a prompt in a sequence: restores what is known of it, evaluates the rest in batches of at most
    /// `batch_size` tokens, and stores whole pages; what a sequence has besides is stored before it is changed. The
    /// logits of the last token are then those of llama_get_logits_ith(context, -1). Call it with all tokens so far
    /// also for the tokens of an answer, one at a time. Where the model has windows or recurrent layers, batches also
    /// end where the cache needs it. Errors: out_of_memory if the context has no room; cancelled; io; out_of_range
    /// without tokens. The sequence then has the tokens that were evaluated.
    [[nodiscard]] result<llama_reuse> decode(llama_seq_id sequence, std::span<const llama_token> tokens,
                                             std::size_t batch_size = 0) {
        if (tokens.empty())
            return error{error_code::out_of_range, "tokens", "a prompt has at least one token"};
        read(tokens);
        llama_reuse made = restore(sequence);
        std::size_t at = made.kept + made.restored;
        const std::vector<std::size_t> places = snapshots_of(at);
        const std::size_t batch_most = most_in_batch(batch_size);
        while (at < prompt_.size()) {
            std::size_t end = std::min(at + batch_most, prompt_.size());
            if (const auto place = std::upper_bound(places.begin(), places.end(), at); place != places.end())
                end = std::min(end, *place);
            if (auto done = evaluate(sequence, at, end); !done)
                return done.error();
            made.evaluated += end - at;
            held_[index(sequence)].tokens.insert(held_[index(sequence)].tokens.end(), prompt_.begin() + offset(at),
                                                 prompt_.begin() + offset(end));
            const bool snapshot = std::binary_search(places.begin(), places.end(), end);
            if (end / options_.page_tokens > at / options_.page_tokens)
                keep(sequence, std::span(prompt_).first(end - end % options_.page_tokens), snapshot);
            at = end;
        }
        stats_.evaluated_tokens += made.evaluated;
        return made;
    }

    /// Stores what a sequence has that the host has evaluated itself: of `tokens`, as many as it has. Of a
    /// recurrent model it stores something only if the sequence has these tokens, no more, and they end a page. Returns
    /// the tokens that the cache now knows of them.
    std::size_t store(llama_seq_id sequence, std::span<const llama_token> tokens) {
        read(tokens);
        const std::size_t size = state_.size(sequence), count = std::min(size, prompt_.size());
        held& own = held_[index(sequence)];
        own.tokens.assign(prompt_.begin(), prompt_.begin() + offset(count == size ? count : 0));
        own.used = ++uses_;
        keep(sequence, std::span(prompt_).first(count), count == size && count % options_.page_tokens == 0);
        return status_ ? cache_->lookup(std::span(prompt_).first(count)).cached_tokens : 0;
    }

    /// Removes what memory has of a prompt and no longer prompt needs. A tier keeps its records. Returns the pages.
    std::size_t forget(std::span<const llama_token> tokens) {
        read(tokens);
        return status_ ? cache_->evict(prompt_) : 0;
    }
    /// Stores what a sequence has, and clears it.
    void clear(llama_seq_id sequence) {
        keep_rest(sequence);
        state_.clear(sequence);
        held_[index(sequence)].tokens.clear();
    }
    /// Loads what a tier has of a prompt into memory, for a later restore. Returns the tokens.
    std::size_t warm(std::span<const llama_token> tokens) {
        read(tokens);
        return status_ ? cache_->prefetch(prompt_) : 0;
    }
    /// What the cache knows of a prompt, and what ends it, in one sentence.
    [[nodiscard]] std::string explain(std::span<const llama_token> tokens) {
        read(tokens);
        return status_ ? cache_->lookup(prompt_).explain() : status_.error().message;
    }

    [[nodiscard]] const llama_cache_stats& stats() const noexcept { return stats_; }
    /// The cache, with its tier and its own statistics. Requires: status().
    [[nodiscard]] cache_type& cache() { return *cache_; }
    /// The page size and the bytes of what is kept of a page, or of a state.
    [[nodiscard]] const llama_state& layout() const noexcept { return state_; }

private:
    // A sequence of the host as the cache left it.
    struct held {
        std::vector<token_id> tokens = {};
        std::uint64_t used = 0;
    };
    static constexpr std::size_t all_group = 0, window_group = 1;

    [[nodiscard]] result<void> open(Policies... policies) {
        held_.resize(std::max<std::size_t>(llama_n_seq_max(context_), 1));
        if (options_.page_tokens == 0)
            return error{error_code::out_of_range, "page_tokens", "a page has at least one token"};
        if (auto opened = state_.open(options_.page_tokens); !opened)
            return opened;
        std::string file;
        if (!options_.model.empty()) {
            auto made = digest_of_model_file(options_.model);
            if (!made)
                return made.error();
            file = std::move(*made);
        }
        const auto layers = static_cast<std::uint32_t>(llama_model_n_layer(llama_get_model(context_)));
        layers::grouped groups{.layout = {options_.page_tokens, {{.layers = layers, .kv_heads = 1, .head_dim = 1}}}};
        if (state_.windowed()) {
            groups.layout.groups.push_back(
                {.layers = layers, .kv_heads = 1, .head_dim = 1, .window = state_.window() + 1});
            groups.block_bytes = {0, codec::opaque::page_bytes(state_.part_bytes())};
        }
        if (state_.recurrent())
            groups.layout.groups.push_back({.layers = layers, .opaque = true});
        auto made =
            open_cache({.limit = {.bytes = options_.bytes},
                        .id = llama_identity(context_, options_.settings, options_.adapters, file, state_.evidence())},
                       codec::opaque{.blob_bytes = state_.page_bytes(), .layout = "sequence state of llama.cpp"},
                       std::move(groups), std::move(policies)...);
        if (!made)
            return made.error();
        cache_.emplace(std::move(*made));
        return {};
    }

    void read(std::span<const llama_token> tokens) {
        prompt_.resize(tokens.size());
        std::transform(tokens.begin(), tokens.end(), prompt_.begin(), [](llama_token one) { return token_id{one}; });
    }
    [[nodiscard]] std::size_t index(llama_seq_id sequence) const {
        require(sequence >= 0 && static_cast<std::size_t>(sequence) + 2 < held_.size() + (status_ ? 0 : 2),
                "a sequence is one of the context's, but for the last two, which are the cache's");
        return static_cast<std::size_t>(sequence);
    }
    static std::ptrdiff_t offset(std::size_t at) noexcept { return static_cast<std::ptrdiff_t>(at); }

    // Of prompt_. `evaluated` is not counted.
    [[nodiscard]] llama_reuse restore(llama_seq_id sequence) {
        llama_reuse made{.tokens = prompt_.size()};
        held& own = held_[index(sequence)];
        own.used = ++uses_;
        const std::size_t most = prompt_.empty() ? 0 : prompt_.size() - 1;
        if (own.tokens.size() == state_.size(sequence)) { // else the host has changed it
            const auto [end, other] =
                std::mismatch(own.tokens.begin(), own.tokens.end(), prompt_.begin(), prompt_.begin() + offset(most));
            const auto live = static_cast<std::size_t>(end - own.tokens.begin());
            made.kept = state_.can_cut(sequence, live) ? live : 0;
        }
        if (made.kept != state_.size(sequence)) {
            keep_rest(sequence);
            state_.cut(sequence, made.kept);
        }
        own.tokens.resize(made.kept);
        if (!status_)
            made.why = status_.error().message;
        else if (made.kept < most)
            load(sequence, most, made);
        own.tokens.assign(prompt_.begin(), prompt_.begin() + offset(made.kept + made.restored));
        ++stats_.prompts;
        stats_.kept_tokens += made.kept;
        stats_.restored_tokens += made.restored;
        return made;
    }

    // Restores what the cache knows after the tokens that the sequence has.
    void load(llama_seq_id sequence, std::size_t most, llama_reuse& made) {
        const auto known = cache_->open(prompt_);
        if (known.size() > made.kept) {
            bool loaded = put(sequence, known, made.kept, first_window(known)) ||
                          (state_.windowed() && put(sequence, known, made.kept, last_window(known)));
            while (!loaded && remove_oldest(sequence))
                loaded = put(sequence, known, made.kept, last_window(known));
            if (!loaded) {
                ++stats_.refused;
                made.why = "the context has no room for " + std::to_string(known.size()) + " cached tokens";
                return;
            }
            made.restored = known.size() - made.kept;
        }
        if (made.kept + made.restored + options_.page_tokens <= most)
            made.why = cache_->lookup(prompt_).explain();
    }

    // Puts the pages of a cached sequence into a sequence of the context, which has `kept` tokens of them; those of
    // windows from page `windows` on. Returns false, and changes nothing, if the context refuses one.
    [[nodiscard]] bool put(llama_seq_id sequence, const typename cache_type::sequence& known, std::size_t kept,
                           std::size_t windows) {
        const std::size_t page_tokens = options_.page_tokens;
        // Keys and values are in cells of their own, which can be shared; windows and states are taken as a whole.
        const bool joins = !state_.windowed() && !state_.recurrent();
        const std::size_t first = joins ? kept / page_tokens : 0, end = known.table().size();
        state_.begin(sequence, first * page_tokens);
        bool all = true;
        for (std::size_t page = first; all && page < end; ++page) {
            all = state_.add(llama_part::all, blob_of(*cache_, known, page, all_group)) &&
                  (page < windows || state_.add(llama_part::last, blob_of(*cache_, known, page, window_group)));
            state_.end_page();
        }
        if (all && state_.recurrent()) {
            all = state_.add(llama_part::state, known.state_of(state_group()));
            state_.end_page();
        }
        if (all)
            return state_.move_to(sequence, known.size());
        state_.drop();
        return false;
    }
    // The first page from which on all have their rows of windows: more than the next token reads, because the order in
    // which llama.cpp adds depends on the cells that a sequence has, and an earlier prompt may be continued from there.
    [[nodiscard]] std::size_t first_window(const typename cache_type::sequence& known) const {
        if (!state_.windowed())
            return known.table().size();
        const auto& blocks = cache_->core().pages().blocks();
        std::size_t first = known.table().size();
        while (first > 0 && blocks.has(blocks.pool_of(window_group), known.table()[first - 1].page))
            --first;
        return first;
    }
    // The first page that the next token reads.
    [[nodiscard]] std::size_t last_window(const typename cache_type::sequence& known) const {
        if (!state_.windowed())
            return known.table().size();
        const auto in_use = known.blocks(window_group);
        return static_cast<std::size_t>(
            std::find_if(in_use.begin(), in_use.end(), [](std::int32_t block) { return block >= 0; }) - in_use.begin());
    }
    [[nodiscard]] std::size_t state_group() const noexcept { return state_.windowed() ? 2 : 1; }

    // Stores the last page of a sequence, which is not whole, before the sequence is changed.
    void keep_rest(llama_seq_id sequence) {
        const std::vector<token_id>& own = held_[index(sequence)].tokens;
        if (own.size() == state_.size(sequence) && own.size() % options_.page_tokens != 0)
            keep(sequence, own, false);
    }
    // Stores the first tokens of a sequence. `snapshot`: with its state.
    void keep(llama_seq_id sequence, std::span<const token_id> tokens, bool snapshot) {
        if (!status_ || tokens.empty() || (state_.recurrent() && !snapshot) ||
            cache_->lookup(tokens).cached_tokens == tokens.size())
            return;
        // To store is no use of the pages before, and reads no tier.
        auto after = cache_->core().match_in_memory(0, tokens, {.emits = false, .touches = false}).sequence;
        const std::size_t first = after.size();
        const bool some = state_.windowed() && state_.first(sequence) > first; // older rows of windows are gone
        auto lease = cache_->reserve(after, tokens.size() - first, {.whole = some});
        if (!lease || !fill(sequence, *lease, tokens.size())) {
            ++stats_.skipped;
            return;
        }
        const auto rows = lease->opened(); // their cost is measured where they are evaluated
        rows.commit_in_place(tokens.subspan(first));
        if constexpr (cache_type::has_tier)
            rows.core.tier().store(rows.core, rows.state);
        ++stats_.stores;
    }
    // Writes the blobs of a lease up to `end` tokens. Returns false if the context does not have all of them, or a
    // state has no room.
    template <class Lease>
    [[nodiscard]] bool fill(llama_seq_id sequence, const Lease& lease, std::size_t end) {
        const std::size_t page_tokens = options_.page_tokens, first = lease.first() / page_tokens;
        std::vector<std::int32_t> windows;
        if (state_.windowed())
            windows = lease.blocks(window_group);
        for (std::size_t page = first; page * page_tokens < end; ++page) {
            const bool last = !windows.empty() && windows[page] >= 0;
            const std::size_t stop = std::min((page + 1) * page_tokens, end);
            if (!state_.write_page(sequence, page * page_tokens, stop, last, [&](llama_part part, std::size_t bytes) {
                    return blob_for(lease, page - first, bytes, part == llama_part::all ? all_group : window_group);
                }))
                return false;
        }
        if (!state_.recurrent())
            return true;
        const auto block = lease.snapshot(state_group(), end, state_.part_bytes());
        return block && state_.write_state(sequence, lease.state_of(state_group(), *block));
    }

    // Where a prompt leaves snapshots of a recurrent state, of which `at` tokens are there.
    [[nodiscard]] std::vector<std::size_t> snapshots_of(std::size_t at) const {
        if (!status_ || !state_.recurrent())
            return {};
        const std::size_t page_tokens = options_.page_tokens;
        snapshot_places places;
        places.every = std::max<std::size_t>(options_.snapshot_interval / page_tokens, 1);
        if (prompt_.size() == at + 1) // of an answer
            return prompt_.size() % page_tokens == 0 &&
                           places.after_prompt(prompt_.size(), at, prompt_.size(), page_tokens)
                       ? std::vector{prompt_.size()}
                       : std::vector<std::size_t>{};
        auto made = places.of(cache_->lookup(prompt_), page_tokens);
        made.erase(made.begin(), std::upper_bound(made.begin(), made.end(), at));
        return made;
    }
    [[nodiscard]] std::size_t most_in_batch(std::size_t wanted) const {
        std::size_t most = llama_n_batch(context_);
        if (wanted > 0)
            most = std::min(most, wanted);
        if (status_ && state_.windowed()) // so that the rows of each window are stored before they are gone
            most =
                std::min(most, std::max<std::size_t>(state_.window() / options_.page_tokens, 1) * options_.page_tokens);
        return most;
    }

    // Evaluates tokens [at, end) of prompt_.
    [[nodiscard]] result<void> evaluate(llama_seq_id sequence, std::size_t at, std::size_t end) {
        const auto decode = [&] {
            return batch_.decode(context_, sequence, at, end, end == prompt_.size(),
                                 [&](std::size_t i) { return index_of(prompt_[i]); });
        };
        const auto began = std::chrono::steady_clock::now();
        std::int32_t code = decode();
        while (code == 1 && remove_oldest(sequence))
            code = decode();
        if (code == 1)
            return error{error_code::out_of_memory, "context",
                         "the context has no room for " + std::to_string(end - at) + " more tokens of the sequence"};
        if (code != 0)
            return error{code == 2 ? error_code::cancelled : error_code::io, "llama_decode",
                         "llama_decode returned " + std::to_string(code)};
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        if (status_) {
            const std::lock_guard guard(cache_->core().lock());
            cache_->core().pages().measure(at, end - at, took.count());
        }
        return {};
    }
    // Clears the sequence that was used the longest ago, but not this one. Returns false if there is none.
    bool remove_oldest(llama_seq_id but) {
        held* oldest = nullptr;
        for (held& one : held_)
            if (&one != &held_[index(but)] && !one.tokens.empty() && (oldest == nullptr || one.used < oldest->used))
                oldest = &one;
        if (oldest == nullptr || !options_.make_room)
            return false;
        clear(static_cast<llama_seq_id>(oldest - held_.data()));
        ++stats_.removed_sequences;
        return true;
    }

    llama_context* context_;
    llama_cache_options options_;
    llama_state state_;
    std::optional<cache_type> cache_;
    result<void> status_;
    std::vector<held> held_;       // by sequence
    std::vector<token_id> prompt_; // of the call under way
    llama_token_batch batch_;
    llama_cache_stats stats_;
    std::uint64_t uses_ = 0;
};

template <class... Policies>
llama_prefix_cache(llama_context*, llama_cache_options, Policies...) -> llama_prefix_cache<Policies...>;
llama_prefix_cache(llama_context*)->llama_prefix_cache<>;

}} // namespace kvcache
