// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/session/any_recompute.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/text/chat_template.hpp>
#include <kvcache/text/stream_decoder.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "documents.hpp"
#include "kept_layers.hpp"
#include "marked_text.hpp"
#include "model_directory.hpp"
#include "saved_chat.hpp"

namespace support {

/// The parts of a conversation: model, tokenizer and so on.
struct speaker {
    const kvcache::transformer& model;
    const kvcache::tokenizer& words;
    const kvcache::chat_template& form;
    kvcache::thread_pool& threads;
    kvcache::sampler sampling = {};
    std::size_t max_tokens = 128;
    std::size_t max_batch_tokens = 256;
    document_flags reuse = {};
    std::vector<std::string> documents = {}; ///< Texts that the first message begins with.
};

/// The result of a turn.
struct turn_report {
    std::string text = {};
    std::size_t prompt = 0; ///< Tokens of the prompt.
    std::size_t reused = 0;
    std::size_t prefilled = 0;
    std::size_t approximate = 0;             ///< Of those reused: they were computed after other tokens.
    double first_token_ms = 0.0;             ///< From the request, template and tokenizer included, to the first token.
    kvcache::digest logits = {};             ///< Digest of the bits of all logits that a token was drawn from.
    std::vector<kvcache::token_id> ids = {}; ///< Tokens of the answer.
};

/// The messages of a conversation; it generates the next answer. `Layers`: what its cache keeps (kept_layers.hpp).
template <class Layers>
class conversation {
public:
    using cache = cache_of<Layers, kvcache::any_recompute>;
    using cache_pipeline = kvcache::pipeline<cache, kvcache::transformer>;

    conversation(const speaker& with, std::string_view system) : with_(with), system_(system) { clear(); }

    /// Removes all messages but the system prompt.
    void clear() {
        past_ = {};
        marked_.clear();
        messages_.clear();
        if (!system_.empty())
            messages_.push_back({.role = "system", .content = system_});
    }

    /// Adds a user message and answers it; `on_text(text)` receives the answer piece by piece. Tokens cached in
    /// `store` are reused; with a new store everything is computed. Errors: those of the template, the tokenizer and
    /// the pipeline; a conversation too long for the model. The message is not added then.
    template <class OnText>
    kvcache::result<turn_report> say(const std::string& text, cache& store, OnText on_text) {
        const stopwatch clock;
        const bool first = marked_.empty() && !with_.documents.empty();
        messages_.push_back({.role = "user"});
        std::string& content = messages_.back().content;
        for (std::size_t i = 0; first && i < with_.documents.size(); ++i) {
            marked_.push_back({messages_.size() - 1, content.size(), with_.documents[i].size()});
            content += with_.documents[i];
        }
        content += text;
        auto turn = answer(clock, store, on_text);
        if (turn) {
            messages_.push_back({.role = "assistant", .content = turn->text});
        } else {
            messages_.pop_back();
            if (first)
                marked_.clear();
        }
        return turn;
    }

    /// Writes the messages to a file, and the pages of the last turn. Errors: those of the pipeline; io.
    kvcache::result<void> save(cache& store, const std::filesystem::path& file) const {
        if (past_.tokens.empty())
            return save_chat(store, store.open(), {}, messages_, file);
        cache_pipeline pipeline(store, with_.model, with_.threads, with_.max_batch_tokens);
        auto whole = pipeline.prefill(past_.tokens, kvcache::logits_mode::none);
        if (!whole)
            return whole.error();
        return save_chat(store, whole->sequence, past_.state, messages_, file);
    }

    /// Replaces the messages by those of a file, and adds its pages to the cache. Errors: those of load_chat; nothing
    /// has changed then.
    kvcache::result<void> load(cache& store, const std::filesystem::path& file) {
        auto loaded = load_chat(store, file);
        if (!loaded)
            return loaded.error();
        const auto tokens = loaded->context.sequence.tokens();
        past_ = {{tokens.begin(), tokens.end()}, std::move(loaded->context.state)};
        messages_ = std::move(loaded->messages);
        return {};
    }

private:
    // The tokens of the last turn that have run, and the state of its answer.
    struct past {
        std::vector<kvcache::token_id> tokens = {};
        kvcache::generation_state state = {};
    };

    template <class OnText>
    kvcache::result<turn_report> answer(const stopwatch& clock, cache& store, OnText on_text) {
        const bool chunks = with_.reuse.how() == kvcache::reuse_mode::chunks;
        kvcache::chat_options how;
        auto messages = messages_;
        if (chunks && !marked_.empty())
            how.cut = cut_at_marks(messages, marked_);
        const auto rendered = with_.form.render(messages, how);
        if (!rendered)
            return rendered.error();
        const auto prompt = with_.words.encode(rendered->segments, false);
        if (!prompt)
            return prompt.error();
        turn_report report;
        kvcache::digest_builder bits;
        kvcache::stream_decoder text(with_.words, {.skip_special = true});
        const kvcache::stop_criteria stop{with_.max_tokens, with_.model.config().eos};
        const auto on_token = [&](kvcache::token_id token, std::span<const float> logits) {
            if (report.first_token_ms == 0.0)
                report.first_token_ms = clock.milliseconds();
            bits.bytes(std::as_bytes(logits));
            const std::string piece = text.push(token);
            report.text += piece;
            on_text(piece);
            return true;
        };
        report.prompt = prompt->size();
        auto finish = [&](auto& made) {
            const std::string rest = text.flush();
            report.text += rest;
            on_text(rest);
            report.logits = bits.finish();
            const auto tokens = made.prompt.sequence.tokens();
            past_ = {{tokens.begin(), tokens.end()}, {with_.sampling, made.ids.size(), {}}};
            if (!made.ids.empty())
                past_.state.pending.push_back(made.ids.back());
            report.ids = std::move(made.ids);
            return std::move(report);
        };
        if constexpr (kvcache::knows_chunks<cache>)
            if (chunks) {
                auto made = answer_with_chunks(store, *prompt, stop, on_token);
                if (!made)
                    return made.error();
                report.reused = made->counts.exact + made->counts.approximate;
                report.prefilled = made->counts.prefilled + made->counts.recomputed;
                report.approximate = made->counts.approximate;
                return finish(*made);
            }
        cache_pipeline pipeline(store, with_.model, with_.threads, with_.max_batch_tokens);
        auto made = kvcache::generate(pipeline, *prompt, with_.sampling, stop, on_token);
        if (!made)
            return made.error();
        report.reused = made->prompt.reused;
        report.prefilled = made->prompt.prefilled;
        return finish(*made);
    }

    // Answers with documents that are computed by themselves first, unless the cache knows them.
    template <class Say>
    auto answer_with_chunks(cache& store, std::span<const kvcache::token_id> prompt, const kvcache::stop_criteria& stop,
                            Say say) -> kvcache::result<kvcache::spliced_answer<cache>>
        requires kvcache::knows_chunks<cache> {
            const auto split = chunking_of(with_.reuse, with_.words);
            kvcache::chunk_pipeline<cache, kvcache::transformer> pipeline(
                store, with_.model, with_.threads,
                {.split = split, .store = false, .max_batch_tokens = with_.max_batch_tokens});
            std::vector<std::vector<kvcache::token_id>> documents;
            for (const std::string& text : with_.documents) {
                auto ids = with_.words.encode(text, {.add_special_tokens = false, .parse_special = false});
                if (!ids)
                    return ids.error();
                documents.push_back(std::move(*ids));
            }
            if (auto warmed = warm_documents(store, pipeline, with_.reuse, split, documents); !warmed)
                return warmed.error();
            return kvcache::generate(pipeline, prompt, kvcache::reuse_mode::chunks, with_.sampling, stop, say);
        }

    const speaker& with_;
    std::string system_;
    std::vector<kvcache::chat_message> messages_;
    std::vector<marked_part> marked_; // documents
    past past_;
};

} // namespace support
