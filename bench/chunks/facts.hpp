// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kvcache.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arms.hpp"
#include "questions.hpp"

namespace bench {

/// The whole sentences of a text, one line each, of 20 to 300 characters.
[[nodiscard]] inline std::vector<std::string> sentences_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in)
        throw std::runtime_error(file.string() + " cannot be read");
    std::vector<std::string> all;
    std::string one;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i] == '\n' || text[i] == '\r' ? ' ' : text[i];
        if (c == ' ' && (one.empty() || one.back() == ' '))
            continue;
        one += c;
        if (c != '.' || i + 1 == text.size() || (text[i + 1] != ' ' && text[i + 1] != '\n'))
            continue;
        if (one.size() >= 20 && one.size() <= 300)
            all.push_back(one);
        one.clear();
    }
    return all;
}

/// Returns retrieval questions for a model that follows instructions in ChatML: each chunk is a passage of whole
/// sentences of a text, of which one says the number of a place; the question asks for the number of one of the places.
/// Passages stand in random order. Throws: runtime_error.
[[nodiscard]] inline std::vector<question>
questions_about_facts(const std::filesystem::path& file, question_sizes sizes, const kvcache::tokenizer& words) {
    constexpr std::array places{"harbour", "library", "mill",   "orchard", "station", "museum", "bakery", "chapel",
                                "castle",  "garden",  "school", "theatre", "market",  "bridge", "tower",  "farm"};
    const auto sentences = sentences_of(file);
    const auto encode = [&](const std::string& text) {
        return must(words.encode(text, {.add_special_tokens = false}));
    };
    const tokens head = encode("<|im_start|>system\nYou answer questions about the passages.");
    std::vector<question> made;
    std::mt19937 dice(1);
    std::size_t next = 0;
    while (made.size() < sizes.questions * sizes.orders) {
        question one;
        document_groups groups;
        std::vector<std::pair<std::string, std::string>> facts; // place, number
        for (std::size_t i = 0; i < sizes.chunks; ++i) {
            std::string place;
            do
                place = places[dice() % places.size()];
            while (std::ranges::find(facts, place, &std::pair<std::string, std::string>::first) != facts.end());
            facts.emplace_back(place, std::to_string(1000 + dice() % 9000));
            const std::string fact = " The number of the " + place + " is " + facts.back().second + ".";
            std::vector<std::string> run;
            for (std::size_t count = encode(fact).size(); count < sizes.tokens; count += encode(run.back()).size()) {
                if (next == sentences.size())
                    throw std::runtime_error(file.string() + " has too few sentences for so many questions");
                run.push_back(" " + sentences[next++]);
            }
            run.insert(run.begin() + static_cast<std::ptrdiff_t>(dice() % (run.size() + 1)), fact);
            std::string passage = "\n\nPassage:";
            for (const std::string& sentence : run)
                passage += sentence;
            groups.push_back({i});
            one.documents.push_back(encode(passage));
        }
        const auto& [place, number] = facts[dice() % facts.size()];
        one.answer = number;
        one.answer_within = true;
        const tokens tail = encode("<|im_end|>\n<|im_start|>user\nWhat is the number of the " + place +
                                   "?<|im_end|>\n<|im_start|>assistant\n");
        for (std::size_t i = 0; i < sizes.orders; ++i) {
            made.push_back(one);
            shuffle(made.back(), groups, head, tail, dice);
        }
    }
    return made;
}

} // namespace bench
