// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

#if !__has_include(<llama.h>)
#error "kvcache: llama.h is not found; install llama.cpp, or add its include/ and ggml/include/ to the include path"
#endif
#include <llama.h>

#ifndef LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
#error "kvcache: adapters/llama.hpp needs llama.cpp of 2026, whose llama.h has LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY"
#endif

namespace kvcache { inline namespace KVCACHE_ABI {

/// Tokens of one sequence for llama_decode, in memory that libllama allocates once.
class llama_token_batch {
public:
    /// For at most `tokens` tokens.
    explicit llama_token_batch(std::size_t tokens)
        : batch_(new llama_batch(llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1))) {}

    /// Evaluates the tokens at the positions [begin, end), which `token(position)` gives. `logits`: whether those of
    /// the last one are computed. Returns what llama_decode does. Requires: as many tokens as it was made for, at most.
    template <class Token>
    std::int32_t decode(llama_context* context, llama_seq_id sequence, std::size_t begin, std::size_t end, bool logits,
                        const Token& token) {
        batch_->n_tokens = static_cast<std::int32_t>(end - begin);
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t at = i - begin;
            batch_->token[at] = token(i);
            batch_->pos[at] = static_cast<llama_pos>(i);
            batch_->n_seq_id[at] = 1;
            batch_->seq_id[at][0] = sequence;
            batch_->logits[at] = logits && i + 1 == end;
        }
        return llama_decode(context, *batch_);
    }

private:
    struct freed {
        void operator()(llama_batch* batch) const {
            llama_batch_free(*batch);
            delete batch;
        }
    };
    std::unique_ptr<llama_batch, freed> batch_;
};

}} // namespace kvcache
