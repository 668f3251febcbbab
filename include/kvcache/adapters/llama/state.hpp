// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#if !__has_include(<llama.h>)
#error "kvcache: llama.h is not found; install llama.cpp, or add its include/ and ggml/include/ to the include path"
#endif
#include <llama.h>

#ifndef LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
#error "kvcache: adapters/llama.hpp needs llama.cpp of 2026, whose llama.h has LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY"
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// What the memory of a llama_context keeps of a sequence.
enum class llama_part {
    all,   ///< Keys and values of all tokens.
    last,  ///< Those of the last tokens, in layers with a sliding window.
    state, ///< A recurrent state.
};

/// Moves parts of sequences out of a llama_context and into it, through two sequences of its own, the last two that the
/// context has. A part is a blob that llama_state_seq_set_data_ext reads: the state of a sequence has the keys and
/// values of all tokens first, and then what PARTIAL_ONLY gives alone, so that the first is cut out of both. Each call
/// costs a pass over the context's cells besides the copy. The host's sequences change in `move_to` only.
class llama_state {
public:
    /// Requires: the context outlives it.
    explicit llama_state(llama_context* context)
        : context_(context),
          memory_(llama_get_memory(context)),
          scratch_(static_cast<llama_seq_id>(llama_n_seq_max(context)) - 1),
          staging_(scratch_ - 1),
          recurrent_(llama_model_is_recurrent(llama_get_model(context)) ||
                     llama_model_is_hybrid(llama_get_model(context))),
          window_(static_cast<std::uint32_t>(std::max(llama_model_n_swa(llama_get_model(context)), 0))) {}

    /// Learns how the memory of the context is laid out, by evaluating a few tokens. Errors: unsupported, with what to
    /// change; io, if the context cannot evaluate. Cost: a prompt of `probe_tokens` tokens.
    [[nodiscard]] result<void> open(std::uint32_t page_tokens) {
        if (auto right = check(page_tokens); !right)
            return right;
        const llama_model* const model = llama_get_model(context_);
        empty_ = blob(LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        std::vector<llama_token> tokens(probe_tokens);
        for (std::size_t i = 0; i < tokens.size(); ++i)
            tokens[i] = static_cast<llama_token>(
                i % static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model))));
        const auto [whole_one, part_one] = evaluate(tokens, 0, 1);
        const auto [whole, part] = evaluate(tokens, 1, probe_tokens);
        const bool evaluated = whole > 0;
        evidence_ = blob(0);
        if (const float* const logits = llama_get_logits_ith(context_, -1); evaluated && logits != nullptr) {
            const auto more = std::as_bytes(
                std::span(logits, static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)))));
            evidence_.insert(evidence_.end(), more.begin(), more.end());
        }
        clear(scratch_);
        if (!evaluated)
            return error{error_code::io, "llama_decode", "the context cannot evaluate a few tokens"};
        if (!recurrent_ && whole == part) // its memory has one part, and ignores the flag
            window_ = 0;
        split_ = recurrent_ || window_ > 0;
        if (!split_)
            empty_.clear();
        const auto of = [](std::size_t one, std::size_t all) {
            return blob_size{one, (all - one) / (probe_tokens - 1)};
        };
        part_ = split_ ? of(part_one, part) : blob_size{};
        const std::size_t first = split_ ? part_one - head_bytes : 0, last = split_ ? part - head_bytes : 0;
        all_ = of(whole_one - first + tail_bytes(), whole - last + tail_bytes());
        page_tokens_ = page_tokens;
        return {};
    }

    /// Whether the model has layers with a sliding window, whose memory is apart.
    [[nodiscard]] bool windowed() const noexcept { return window_ > 0; }
    /// Whether it has recurrent layers.
    [[nodiscard]] bool recurrent() const noexcept { return recurrent_; }
    /// Tokens that a query of a layer with a window reads before its own, and one more, which the library keeps.
    [[nodiscard]] std::uint32_t window() const noexcept { return window_; }
    /// Bytes of the blob of a page of keys and values of all tokens.
    [[nodiscard]] std::size_t page_bytes() const noexcept { return all_.of(page_tokens_); }
    /// Bytes of the blob of a page of the layers with windows, or of a state.
    [[nodiscard]] std::size_t part_bytes() const noexcept { return part_.of(page_tokens_); }
    /// What the context computed for the tokens of `open`: two contexts that give other bytes are not the same.
    [[nodiscard]] std::span<const std::byte> evidence() const noexcept { return evidence_; }
    void forget_evidence() noexcept { evidence_ = {}; }

    /// The number of tokens that a sequence has; 0 if it has none, or not from its beginning on.
    [[nodiscard]] std::size_t size(llama_seq_id of) const {
        return static_cast<std::size_t>(llama_memory_seq_pos_max(memory_, of) + 1);
    }
    /// The first position of which a sequence has everything; of layers with windows the oldest tokens are dropped.
    [[nodiscard]] std::size_t first(llama_seq_id of) const {
        return static_cast<std::size_t>(std::max(llama_memory_seq_pos_min(memory_, of), llama_pos{0}));
    }
    /// Whether a sequence goes on from its first `tokens` tokens as if it had no more.
    [[nodiscard]] bool can_cut(llama_seq_id of, std::size_t tokens) const {
        if (tokens == size(of))
            return true;
        return !recurrent_ && (!windowed() || first(of) <= tokens - std::min<std::size_t>(tokens, window_));
    }
    /// Removes what follows the first `tokens` tokens. Requires: can_cut.
    void cut(llama_seq_id of, std::size_t tokens) {
        if (tokens == 0)
            clear(of);
        else
            llama_memory_seq_rm(memory_, of, static_cast<llama_pos>(tokens), -1);
    }
    void clear(llama_seq_id of) { llama_memory_seq_rm(memory_, of, -1, -1); }

    /// Writes the page of tokens [first, end) of a sequence as a blob of all their keys and values, and, with `last`,
    /// as another of those of layers with windows. `into(part, bytes)` gives memory for each. Returns false if the
    /// sequence has not all of them.
    template <class Into>
    [[nodiscard]] bool write_page(llama_seq_id of, std::size_t first, std::size_t end, bool last, const Into& into) {
        llama_memory_seq_cp(memory_, of, scratch_, static_cast<llama_pos>(first), static_cast<llama_pos>(end));
        const bool all = (!last || this->first(scratch_) == first) && write_scratch(end - first, last, into);
        clear(scratch_);
        return all;
    }
    /// Writes the recurrent state of a sequence as a blob of `part_bytes` bytes. Returns false if that fails.
    [[nodiscard]] bool write_state(llama_seq_id of, std::span<std::byte> to) const {
        return get(of, to, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == to.size();
    }

    /// Begins with the first `tokens` tokens of a sequence, which it shares.
    void begin(llama_seq_id of, std::size_t tokens) {
        clear(staging_);
        if (tokens > 0)
            llama_memory_seq_cp(memory_, of, staging_, 0, static_cast<llama_pos>(tokens));
    }
    /// Adds a blob to what was begun. Returns false if the context refuses it, or has no room.
    [[nodiscard]] bool add(llama_part part, std::span<const std::byte> blob) {
        const llama_state_seq_flags flags = part == llama_part::all ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        return llama_state_seq_set_data_ext(context_, reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size(),
                                            scratch_, flags) == blob.size();
    }
    /// Ends a run of blobs of the same tokens.
    void end_page() {
        llama_memory_seq_cp(memory_, scratch_, staging_, -1, -1);
        clear(scratch_);
    }
    /// Puts what was begun in the place of a sequence, which then has `tokens` tokens. Returns false, and changes
    /// nothing, if it has not so many.
    [[nodiscard]] bool move_to(llama_seq_id to, std::size_t tokens) {
        const bool whole = size(staging_) == tokens;
        if (whole) {
            clear(to);
            llama_memory_seq_cp(memory_, staging_, to, -1, -1);
        }
        drop();
        return whole;
    }
    /// Forgets what was begun.
    void drop() {
        clear(scratch_);
        clear(staging_);
    }

    static constexpr std::size_t probe_tokens = 8;

private:
    // The number before a state: a magic word and the sequence that it was of, which is not read.
    static constexpr std::size_t head_bytes = 8;

    // The bytes of a blob grow by as many for each token.
    struct blob_size {
        std::size_t first = 0, more = 0;
        [[nodiscard]] std::size_t of(std::size_t tokens) const noexcept {
            return first + more * (tokens - std::min<std::size_t>(tokens, 1));
        }
    };
    // A batch in memory that libllama allocates.
    struct batch_freed {
        void operator()(llama_batch* batch) const {
            llama_batch_free(*batch);
            delete batch;
        }
    };

    [[nodiscard]] result<void> check(std::uint32_t page_tokens) const {
        const llama_model* const model = llama_get_model(context_);
        if (memory_ == nullptr)
            return refused("model", "the model keeps nothing of earlier tokens");
        if (staging_ < 1)
            return refused("n_seq_max", "the context needs two sequences of the cache's own besides yours: open it "
                                        "with n_seq_max = your sequences + 2");
        if (llama_n_ctx_seq(context_) != llama_n_ctx(context_))
            return refused("kv_unified", "open the context with kv_unified = true, so that sequences share cells");
        if (llama_model_has_encoder(model))
            return refused("model", "a model with an encoder is not supported");
        if (window_ > 0 && recurrent_)
            return refused("model", "a model with windows and recurrent layers is not supported");
        if (window_ > 0 && page_tokens > window_)
            return refused("page_tokens",
                           "a page has at most as many tokens as a window of the model: " + std::to_string(window_));
        return {};
    }
    [[nodiscard]] static error refused(const char* field, std::string words) {
        return {error_code::unsupported, field, std::string(field) + ": " + std::move(words)};
    }

    // Evaluates probe tokens [first, end) in the scratch sequence. Returns the bytes of its state and of the part of
    // it; 0 if the context refuses.
    struct sizes {
        std::size_t whole = 0, part = 0;
    };
    [[nodiscard]] sizes evaluate(std::span<const llama_token> tokens, std::size_t first, std::size_t end) {
        const std::unique_ptr<llama_batch, batch_freed> batch(
            new llama_batch(llama_batch_init(static_cast<std::int32_t>(end - first), 0, 1)));
        for (std::size_t i = first; i < end; ++i) {
            const std::size_t at = i - first;
            batch->token[at] = tokens[i];
            batch->pos[at] = static_cast<llama_pos>(i);
            batch->n_seq_id[at] = 1;
            batch->seq_id[at][0] = scratch_;
            batch->logits[at] = i + 1 == end;
        }
        batch->n_tokens = static_cast<std::int32_t>(end - first);
        if (llama_decode(context_, *batch) != 0)
            return {};
        return {llama_state_seq_get_size_ext(context_, scratch_, 0),
                llama_state_seq_get_size_ext(context_, scratch_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)};
    }

    // The state of the scratch sequence.
    [[nodiscard]] std::vector<std::byte> blob(llama_state_seq_flags flags) const {
        std::vector<std::byte> made(llama_state_seq_get_size_ext(context_, scratch_, flags));
        get(scratch_, made, flags);
        return made;
    }
    std::size_t get(llama_seq_id of, std::span<std::byte> to, llama_state_seq_flags flags) const {
        return llama_state_seq_get_data_ext(context_, reinterpret_cast<std::uint8_t*>(to.data()), to.size(), of, flags);
    }

    template <class Into>
    [[nodiscard]] bool write_scratch(std::size_t tokens, bool last, const Into& into) {
        if (!split_)
            return get(scratch_, into(llama_part::all, all_.of(tokens)), 0) == all_.of(tokens);
        const std::size_t whole = llama_state_seq_get_size_ext(context_, scratch_, 0);
        const std::size_t part =
            llama_state_seq_get_size_ext(context_, scratch_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) - head_bytes;
        copy_.resize(whole);
        if (whole + tail_bytes() != all_.of(tokens) + part || get(scratch_, copy_, 0) != whole)
            return false;
        const auto state = std::span<const std::byte>(copy_),
                   tail = std::span<const std::byte>(empty_).subspan(head_bytes);
        const auto all = into(llama_part::all, whole - part + tail.size());
        std::copy_n(state.begin(), whole - part, all.begin());
        std::copy(tail.begin(), tail.end(), all.begin() + static_cast<std::ptrdiff_t>(whole - part));
        if (last && windowed() && head_bytes + part == part_.of(tokens)) {
            const auto own = into(llama_part::last, head_bytes + part);
            std::copy_n(state.begin(), head_bytes, own.begin());
            std::copy(state.end() - static_cast<std::ptrdiff_t>(part), state.end(), own.begin() + head_bytes);
        }
        return !last || head_bytes + part == part_.of(tokens);
    }
    [[nodiscard]] std::size_t tail_bytes() const noexcept { return split_ ? empty_.size() - head_bytes : 0; }

    llama_context* context_;
    llama_memory_t memory_;
    llama_seq_id scratch_, staging_;
    bool recurrent_;
    std::uint32_t window_;
    bool split_ = false; // whether the state has a second part
    std::size_t page_tokens_ = 0;
    blob_size all_, part_;
    std::vector<std::byte> empty_; // the second part of a sequence without tokens
    std::vector<std::byte> evidence_;
    std::vector<std::byte> copy_; // of a state, while it is divided
};

}} // namespace kvcache
