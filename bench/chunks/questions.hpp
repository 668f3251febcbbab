// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arms.hpp"
#include <nlohmann/json.hpp>

namespace bench {

/// A question: documents that are each prefilled alone, and prompts with the documents in another order.
struct question {
    std::vector<tokens> documents;
    tokens prompt, prompt_elsewhere; ///< The same question with two document orders.
    std::string answer;              ///< The expected answer; empty: the exact run's answer.
    bool answer_within = false;      ///< A reply is right if it holds the answer; else it must be the answer.
    tokens exact_answer;
    kvcache::matrix exact_logits; // (answer, vocabulary)

    [[nodiscard]] bool right(const std::string& reply) const {
        return answer_within ? reply.find(answer) != std::string::npos : reply == answer;
    }
};

/// Groups of documents that keep their order inside the group when the groups are shuffled.
using document_groups = std::vector<std::vector<std::size_t>>;

/// Writes both prompts of a question: `head`, the documents in two random orders of their groups, `tail`.
inline void shuffle(question& one, document_groups groups, const tokens& head, const tokens& tail, std::mt19937& dice) {
    const auto append = [](tokens& to, const tokens& more) { to.insert(to.end(), more.begin(), more.end()); };
    for (tokens* prompt : {&one.prompt, &one.prompt_elsewhere}) {
        *prompt = head;
        for (std::size_t j = groups.size(); j > 1; --j)
            std::swap(groups[j - 1], groups[dice() % j]);
        for (const auto& group : groups)
            for (const std::size_t document : group)
                append(*prompt, one.documents[document]);
        append(*prompt, tail);
    }
}

/// Returns the questions of the given kinds for a model trained on notes, from directory/questions.jsonl. A note whose
/// subject is a pronoun ("She", "He", "It") stays after the note that precedes it. Throws: runtime_error.
[[nodiscard]] inline std::vector<question> questions_about_notes(const std::filesystem::path& directory,
                                                                 const std::vector<std::string>& kinds,
                                                                 std::size_t orders, const kvcache::tokenizer& words) {
    const auto file = directory / "questions.jsonl";
    std::ifstream in(file);
    if (!in)
        throw std::runtime_error(file.string() + " cannot be read; a model without questions needs --text");
    const auto encode = [&](const std::string& text) {
        return must(words.encode(text, {.add_special_tokens = false}));
    };
    const auto leans = [](const std::string& note) {
        return note.starts_with("- She ") || note.starts_with("- He ") || note.starts_with("- It ");
    };
    const tokens head = encode("<|im_start|>system\nYou answer questions about the notes.");
    std::vector<question> made;
    std::mt19937 dice(1);
    for (std::string line; std::getline(in, line);) {
        const auto item = nlohmann::json::parse(line);
        if (std::ranges::find(kinds, item.at("kind").get<std::string>()) == kinds.end() || !item.at("history").empty())
            continue;
        question one;
        one.answer = item.at("answer");
        document_groups groups;
        for (const std::string text : item.at("documents")) {
            if (groups.empty() || !leans(text))
                groups.emplace_back();
            groups.back().push_back(one.documents.size());
            one.documents.push_back(encode("\n" + text));
        }
        const tokens tail = encode("<|im_end|>\n<|im_start|>user\n" + item.at("question").get<std::string>() +
                                   "<|im_end|>\n<|im_start|>assistant\n");
        for (std::size_t i = 0; i < orders; ++i) {
            made.push_back(one);
            shuffle(made.back(), groups, head, tail, dice);
        }
    }
    if (made.empty())
        throw std::runtime_error(file.string() + " has no question of these kinds");
    return made;
}

/// How many questions a text gives, and how large they are.
struct question_sizes {
    std::size_t chunks = 8, tokens = 512; ///< Chunks of a question, and tokens of each.
    std::size_t orders = 3;               ///< Orders of the chunks in which each question is asked.
    std::size_t questions = 40;           ///< At most so many.
};

/// Returns questions for any model: `chunks` chunks of a text, in random order, followed by the text after the last
/// chunk, a quarter of a chunk, to continue. The next question begins after that. Throws: runtime_error.
[[nodiscard]] inline std::vector<question> questions_about_text(const std::filesystem::path& file, question_sizes sizes,
                                                                const kvcache::tokenizer& words) {
    const auto [chunks, size, orders, most_questions] = sizes;
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in)
        throw std::runtime_error(file.string() + " cannot be read");
    const tokens all = must(words.encode(text, {.add_special_tokens = false}));
    const tokens opening = must(words.encode("", {}));
    const std::size_t tail = size / 4, stride = chunks * size + tail;
    const auto piece = [&](std::size_t first, std::size_t count) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(first);
        return tokens(from, from + static_cast<std::ptrdiff_t>(count));
    };
    std::vector<question> made;
    std::mt19937 dice(1);
    for (std::size_t first = 0; first + stride <= all.size() && made.size() < most_questions * orders;
         first += stride) {
        question one;
        document_groups groups;
        for (std::size_t i = 0; i < chunks; ++i) {
            groups.push_back({i});
            one.documents.push_back(piece(first + i * size, size));
        }
        for (std::size_t i = 0; i < orders; ++i) {
            made.push_back(one);
            shuffle(made.back(), groups, opening, piece(first + chunks * size, tail), dice);
        }
    }
    if (made.empty())
        throw std::runtime_error(file.string() + " has " + std::to_string(all.size()) +
                                 " tokens, and a question needs " + std::to_string(stride));
    return made;
}

} // namespace bench
