// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bench {

/// The questions about notes in a model directory's questions.jsonl.
class question_set {
public:
    /// Reads at most `most` questions, skipping those with a history; reads none if the directory has no such file.
    question_set(const std::filesystem::path& directory, const kvcache::tokenizer& words, std::size_t most)
        : words_(words) {
        std::ifstream in(directory / "questions.jsonl");
        for (std::string line; asked_.size() < most && std::getline(in, line);) {
            const auto item = nlohmann::json::parse(line);
            if (!item.at("history").empty())
                continue;
            std::string prompt = "<|im_start|>system\nYou answer questions about the notes.";
            for (const std::string note : item.at("documents"))
                prompt += "\n" + note;
            prompt += "<|im_end|>\n<|im_start|>user\n" + item.at("question").get<std::string>() +
                      "<|im_end|>\n<|im_start|>assistant\n";
            asked_.push_back({encode(prompt), item.at("answer")});
        }
        if (!asked_.empty())
            stop_ = encode("<|im_end|>").at(0);
    }

    [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }

    /// The share of questions that greedy decoding answers word for word, with pages of this codec.
    template <class Codec>
    [[nodiscard]] double right(const kvcache::transformer& model, kvcache::thread_pool& threads, const Codec& codec,
                               std::uint32_t page_tokens) const {
        const kvcache::page_shape shape = model.shape(page_tokens);
        std::size_t right = 0;
        for (const question& one : asked_) {
            auto store = kvcache::make_cache({.shape = shape, .limit = {.bytes = std::size_t{1} << 26}}, codec);
            kvcache::pipeline<decltype(store), kvcache::transformer> pipeline(store, model, threads);
            auto filled = pipeline.prefill(one.prompt);
            if (!filled)
                throw std::runtime_error(filled.error().message);
            std::vector<kvcache::token_id> said;
            for (kvcache::matrix logits = std::move(filled->logits); said.size() < 64;) {
                Eigen::Index best = 0;
                logits.row(0).maxCoeff(&best);
                const auto token = kvcache::token_id{static_cast<std::int32_t>(best)};
                if (token == stop_)
                    break;
                said.push_back(token);
                auto next = pipeline.extend(filled->sequence, {&said.back(), 1});
                if (!next)
                    throw std::runtime_error(next.error().message);
                logits = std::move(*next);
            }
            right += words_.decode(said, {}) == one.answer;
        }
        return static_cast<double>(right) / static_cast<double>(asked_.size());
    }

private:
    struct question {
        std::vector<kvcache::token_id> prompt;
        std::string answer;
    };

    [[nodiscard]] std::vector<kvcache::token_id> encode(const std::string& text) const {
        auto ids = words_.encode(text, {.add_special_tokens = false});
        if (!ids)
            throw std::runtime_error(ids.error().message);
        return std::move(*ids);
    }

    const kvcache::tokenizer& words_;
    std::vector<question> asked_;
    kvcache::token_id stop_ = {};
};

} // namespace bench
