// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/llama/batch.hpp>
#include <kvcache/core/errors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <llama.h>

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
        drop();
        empty_ = blob(scratch_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
        llama_token_batch batch(probe_tokens);
        const auto [whole_one, part_one] = evaluate(batch, 0, 1);
        const auto [whole, part] = evaluate(batch, 1, probe_tokens);
        if (whole > 0)
            evidence_ = evidence_of_probe();
        drop();
        if (whole == 0)
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

    /// The number of tokens of a sequence that begins at position 0; 0 if it has none.
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
        drop();
        if (tokens > 0)
            llama_memory_seq_cp(memory_, of, staging_, 0, static_cast<llama_pos>(tokens));
    }
    /// Adds a blob to what was begun. Returns false if it is empty, or if the context refuses it or has no room.
    [[nodiscard]] bool add(llama_part part, std::span<const std::byte> blob) {
        const llama_state_seq_flags flags = part == llama_part::all ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        return !blob.empty() &&
               llama_state_seq_set_data_ext(context_, reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size(),
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
    [[nodiscard]] result<void> check(std::uint32_t page_tokens) const {
        const llama_model* const model = llama_get_model(context_);
        if (memory_ == nullptr)
            return refused("model", "the model keeps nothing of earlier tokens");
        if (staging_ < 1)
            return refused("n_seq_max", "the context needs two sequences of the cache's own besides yours: open it "
                                        "with n_seq_max = your sequences + 2");
        if (llama_n_ctx_seq(context_) != llama_n_ctx(context_))
            return refused("kv_unified", "open the context with kv_unified = true, so that sequences share cells");
        if (llama_model_has_encoder(model) || vocabulary() <= 0)
            return refused("model", "a model with an encoder, or without a vocabulary, is not supported");
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
    [[nodiscard]] sizes evaluate(llama_token_batch& batch, std::size_t begin, std::size_t end) {
        const auto count = static_cast<std::size_t>(vocabulary());
        const auto token = [&](std::size_t i) { return static_cast<llama_token>(i % count); };
        if (batch.decode(context_, scratch_, begin, end, true, token) != 0)
            return {};
        return {llama_state_seq_get_size_ext(context_, scratch_, 0),
                llama_state_seq_get_size_ext(context_, scratch_, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)};
    }
    // What the context has computed for the probe tokens: keys, values, states and logits. The numbers of sequences in
    // it, which differ between two of the same content, are left out.
    [[nodiscard]] std::vector<std::byte> evidence_of_probe() {
        std::vector<std::byte> made = blob(scratch_, 0);
        llama_memory_seq_cp(memory_, scratch_, staging_, -1, -1);
        const std::vector<std::byte> other = blob(staging_, 0);
        for (std::size_t i = 0; i < std::min(made.size(), other.size()); ++i)
            if (made[i] != other[i])
                made[i] = std::byte{};
        if (const float* const logits = llama_get_logits_ith(context_, -1); logits != nullptr) {
            const auto more = std::as_bytes(std::span(logits, static_cast<std::size_t>(vocabulary())));
            made.insert(made.end(), more.begin(), more.end());
        }
        return made;
    }
    [[nodiscard]] std::int32_t vocabulary() const {
        return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context_)));
    }

    // The state of a sequence.
    [[nodiscard]] std::vector<std::byte> blob(llama_seq_id of, llama_state_seq_flags flags) const {
        std::vector<std::byte> made(llama_state_seq_get_size_ext(context_, of, flags));
        get(of, made, flags);
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
