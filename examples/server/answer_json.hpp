// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange.hpp"
#include "problem.hpp"

namespace server {

/// The requests of a completion, one for each prompt; one of a chat.
template <class Layers>
using exchanges = std::vector<std::shared_ptr<exchange<Layers>>>;

/// Writes answers in the format of OpenAI's API. Choices are numbered through all prompts.
template <class Layers>
class answer_json {
public:
    answer_json(exchanges<Layers> of, std::string id)
        : all_(std::move(of)), id_(std::move(id)), created_(std::time(nullptr)) {}

    [[nodiscard]] const exchanges<Layers>& all() const noexcept { return all_; }
    [[nodiscard]] const question& asked() const noexcept { return all_.front()->asked(); }

    /// Adds the choices of a prompt. Requires: it is over; `pieces` holds all of its pieces.
    void add_choices(std::size_t prompt, const std::vector<piece>& pieces, json& to) const {
        const exchange<Layers>& from = *all_[prompt];
        for (std::size_t i = 0; i < asked().choices; ++i) {
            json one{{"index", index_of(prompt, i)}};
            if (asked().chat)
                one["message"] = {{"role", "assistant"}, {"content", from.text(i)}, {"refusal", nullptr}};
            else
                one["text"] = (asked().echo ? from.prompt_text() : std::string()) + from.text(i);
            std::vector<const kvcache::generated_token*> its, scored;
            for (const piece& each : pieces)
                if (each.choice == i && each.has_token)
                    its.push_back(&each.token);
            for (const auto& each : from.outcome().prompt)
                scored.push_back(&each);
            scored.insert(scored.end(), its.begin(), its.end());
            one["logprobs"] = log_probabilities(scored);
            one["finish_reason"] = reason(prompt, i);
            if (asked().token_ids)
                one["token_ids"] = ids(its);
            to.push_back(std::move(one));
        }
    }

    /// Returns the complete answer with its choices.
    [[nodiscard]] json whole(json choices) const {
        json made = head(false);
        made["choices"] = std::move(choices);
        made["usage"] = usage();
        if (asked().show_tokens)
            made["kvcache"] = tokens();
        return made;
    }

    /// Returns the first chunk of a choice, of a chat or with the prompt of a completion.
    [[nodiscard]] json opening(std::size_t prompt, std::size_t choice) const {
        return chunk(index_of(prompt, choice), {{"role", "assistant"}, {"content", ""}},
                     asked().chat ? std::string() : all_[prompt]->prompt_text(), nullptr, nullptr);
    }
    [[nodiscard]] json chunk_of(std::size_t prompt, const piece& said) const {
        json made = chunk(index_of(prompt, said.choice), {{"content", said.text}}, said.text,
                          said.has_token ? log_probabilities({&said.token}) : json(), nullptr);
        if (asked().token_ids && said.has_token)
            made["choices"][0]["token_ids"] = ids({&said.token});
        return made;
    }
    [[nodiscard]] json ending(std::size_t prompt, std::size_t choice) const {
        return chunk(index_of(prompt, choice), json::object(), "", nullptr, reason(prompt, choice));
    }
    [[nodiscard]] json usage_chunk() const {
        json made = head(true);
        made["choices"] = json::array();
        made["usage"] = usage();
        if (asked().show_tokens)
            made["kvcache"] = tokens();
        return made;
    }

private:
    using scored_tokens = std::vector<const kvcache::generated_token*>;

    [[nodiscard]] std::size_t index_of(std::size_t prompt, std::size_t choice) const {
        return prompt * asked().choices + choice;
    }

    [[nodiscard]] json head(bool streamed) const {
        const char* object = !asked().chat ? "text_completion" : streamed ? "chat.completion.chunk" : "chat.completion";
        return {{"id", id_},
                {"object", object},
                {"created", created_},
                {"model", all_.front()->at().name},
                {"seed", asked().sampling.seed}};
    }

    [[nodiscard]] json chunk(std::size_t index, json delta, const std::string& text, json scores, json why) const {
        json one{{"index", index}};
        if (asked().chat)
            one["delta"] = std::move(delta);
        else
            one["text"] = text;
        one["logprobs"] = std::move(scores);
        one["finish_reason"] = std::move(why);
        json made = head(true);
        made["choices"] = json::array({std::move(one)});
        if (asked().include_usage)
            made["usage"] = nullptr;
        return made;
    }

    // In the format of vLLM's return_token_ids.
    [[nodiscard]] static json ids(const scored_tokens& tokens) {
        json made = json::array();
        for (const auto* each : tokens)
            made.push_back(kvcache::index_of(each->token));
        return made;
    }

    [[nodiscard]] json reason(std::size_t prompt, std::size_t choice) const {
        return all_[prompt]->outcome().answers[choice].finish_reason == kvcache::finish_reason::stopped ? "stop"
                                                                                                        : "length";
    }

    [[nodiscard]] json usage() const {
        std::size_t said = 0;
        kvcache::reuse_counts sum;
        for (const auto& each : all_) {
            const auto& end = each->outcome();
            sum.prompt += each->prompt().size();
            sum.exact += end.reused;
            sum.approximate += end.approximate;
            sum.recomputed += end.recomputed;
            sum.prefilled += end.prefilled;
            for (const auto& answer : each->outcome().answers)
                said += answer.ids.size();
        }
        return {{"prompt_tokens", sum.prompt},
                {"completion_tokens", said},
                {"total_tokens", sum.prompt + said},
                {"prompt_tokens_details", {{"cached_tokens", sum.exact + sum.approximate}}},
                {"kvcache",
                 {{"mode", support::name_of(all_.front()->mode())},
                  {"approximate", sum.approximate > 0},
                  {"kv_reuse_ratio", sum.reuse_ratio()},
                  {"exact_tokens", sum.exact},
                  {"approximate_tokens", sum.approximate},
                  {"recomputed_tokens", sum.recomputed},
                  {"prefilled_tokens", sum.prefilled}}}};
    }

    // For the web page: the prompt, token by token. A token that was in the conversation before and was computed
    // again is marked as recomputed.
    [[nodiscard]] json tokens() const {
        const exchange<Layers>& from = *all_.front();
        json texts = json::array();
        for (const auto token : from.prompt())
            texts.push_back(word(token));
        const std::size_t reused = from.outcome().reused;
        return {{"prompt", std::move(texts)},
                {"reused", reused},
                {"recomputed", std::max(reused, std::min(from.known_before(), from.prompt().size())) - reused},
                {"first_token_ms", from.first_token() * 1000.0}};
    }

    [[nodiscard]] std::string word(kvcache::token_id token) const {
        return all_.front()->at().words.decode({&token, 1}, {});
    }

    [[nodiscard]] json score(kvcache::token_id token, float log_probability) const {
        const std::string text = word(token);
        json bytes = json::array();
        for (const char c : text)
            bytes.push_back(static_cast<unsigned char>(c));
        return {{"token", text}, {"logprob", log_probability}, {"bytes", std::move(bytes)}};
    }

    // The first token of a prompt has no score.
    [[nodiscard]] json log_probabilities(const scored_tokens& tokens) const {
        if (!asked().log_probabilities)
            return nullptr;
        if (asked().chat) {
            json content = json::array();
            for (const auto* each : tokens) {
                json one = score(each->token, *each->log_probability);
                one["top_logprobs"] = json::array();
                for (const auto& other : each->top)
                    one["top_logprobs"].push_back(score(other.token, other.log_probability));
                content.push_back(std::move(one));
            }
            return {{"content", std::move(content)}};
        }
        json made{{"tokens", json::array()}, {"token_logprobs", json::array()}, {"top_logprobs", json::array()}};
        for (const auto* each : tokens) {
            made["tokens"].push_back(word(each->token));
            made["token_logprobs"].push_back(each->log_probability ? json(*each->log_probability) : json());
            json top = each->log_probability ? json::object() : json();
            for (const auto& other : each->top) // the likeliest of those with the same text
                if (const std::string text = word(other.token); !top.contains(text))
                    top[text] = other.log_probability;
            made["top_logprobs"].push_back(std::move(top));
        }
        return made;
    }

    exchanges<Layers> all_;
    std::string id_;
    std::time_t created_;
};

} // namespace server
