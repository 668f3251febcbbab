// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <vector>

#include "exchange.hpp"
#include "problem.hpp"

namespace server {

/// Writes answers in the format of OpenAI's API.
class answer_json {
public:
    answer_json(const exchange& from, std::string id) : from_(from), id_(std::move(id)), created_(std::time(nullptr)) {}

    /// Returns the complete answer. Requires: it is over; `pieces` holds all of its pieces.
    [[nodiscard]] json whole(const std::vector<piece>& pieces) const {
        json choices = json::array();
        for (std::size_t i = 0; i < from_.asked().choices; ++i) {
            json one{{"index", i}};
            if (chat())
                one["message"] = {{"role", "assistant"}, {"content", from_.text(i)}, {"refusal", nullptr}};
            else
                one["text"] = from_.text(i);
            std::vector<const piece*> its;
            for (const piece& each : pieces)
                if (each.choice == i && each.has_token)
                    its.push_back(&each);
            one["logprobs"] = log_probabilities(its);
            one["finish_reason"] = reason(i);
            if (from_.asked().token_ids)
                one["token_ids"] = ids(its);
            choices.push_back(std::move(one));
        }
        json made = head(false);
        made["choices"] = std::move(choices);
        made["usage"] = usage();
        if (from_.asked().show_tokens)
            made["kvcache"] = tokens();
        return made;
    }

    /// Returns the first chunk of a streamed chat.
    [[nodiscard]] json opening(std::size_t choice) const {
        return chunk(choice, {{"role", "assistant"}, {"content", ""}}, "", nullptr, nullptr);
    }
    [[nodiscard]] json chunk_of(const piece& said) const {
        json made = chunk(said.choice, {{"content", said.text}}, said.text,
                          said.has_token ? log_probabilities({&said}) : json(), nullptr);
        if (from_.asked().token_ids && said.has_token)
            made["choices"][0]["token_ids"] = ids({&said});
        return made;
    }
    [[nodiscard]] json ending(std::size_t choice) const {
        return chunk(choice, json::object(), "", nullptr, reason(choice));
    }
    [[nodiscard]] json usage_chunk() const {
        json made = head(true);
        made["choices"] = json::array();
        made["usage"] = usage();
        if (from_.asked().show_tokens)
            made["kvcache"] = tokens();
        return made;
    }

private:
    [[nodiscard]] bool chat() const { return from_.asked().chat; }

    [[nodiscard]] json head(bool streamed) const {
        const char* object = !chat() ? "text_completion" : streamed ? "chat.completion.chunk" : "chat.completion";
        return {{"id", id_},
                {"object", object},
                {"created", created_},
                {"model", from_.at().name},
                {"seed", from_.asked().draw.seed}};
    }

    [[nodiscard]] json chunk(std::size_t choice, json delta, const std::string& text, json scores, json why) const {
        json one{{"index", choice}};
        if (chat())
            one["delta"] = std::move(delta);
        else
            one["text"] = text;
        one["logprobs"] = std::move(scores);
        one["finish_reason"] = std::move(why);
        json made = head(true);
        made["choices"] = json::array({std::move(one)});
        if (from_.asked().include_usage)
            made["usage"] = nullptr;
        return made;
    }

    // In the format of vLLM's return_token_ids.
    [[nodiscard]] static json ids(const std::vector<const piece*>& pieces) {
        json made = json::array();
        for (const piece* each : pieces)
            made.push_back(kvcache::index_of(each->token.token));
        return made;
    }

    [[nodiscard]] json reason(std::size_t choice) const {
        return from_.outcome().answers[choice].why == kvcache::finish_reason::stopped ? "stop" : "length";
    }

    [[nodiscard]] json usage() const {
        const auto& end = from_.outcome();
        std::size_t said = 0;
        for (const auto& each : end.answers)
            said += each.ids.size();
        return {{"prompt_tokens", from_.prompt().size()},
                {"completion_tokens", said},
                {"total_tokens", from_.prompt().size() + said},
                {"prompt_tokens_details", {{"cached_tokens", end.reused}}}};
    }

    // For the web page: the prompt, token by token. A token that was in the conversation before and was computed
    // again is marked as recomputed.
    [[nodiscard]] json tokens() const {
        json texts = json::array();
        for (const auto token : from_.prompt())
            texts.push_back(from_.at().words.decode({&token, 1}, {}));
        const std::size_t reused = from_.outcome().reused;
        return {{"prompt", std::move(texts)},
                {"reused", reused},
                {"recomputed", std::max(reused, std::min(from_.known_before(), from_.prompt().size())) - reused},
                {"first_token_ms", from_.first_token() * 1000.0}};
    }

    [[nodiscard]] json score(kvcache::token_id token, float log_probability) const {
        const std::string text = from_.at().words.decode({&token, 1}, {});
        json bytes = json::array();
        for (const char c : text)
            bytes.push_back(static_cast<unsigned char>(c));
        return {{"token", text}, {"logprob", log_probability}, {"bytes", std::move(bytes)}};
    }

    [[nodiscard]] json log_probabilities(const std::vector<const piece*>& pieces) const {
        if (!from_.asked().log_probabilities)
            return nullptr;
        if (chat()) {
            json content = json::array();
            for (const piece* each : pieces) {
                json one = score(each->token.token, *each->token.log_probability);
                one["top_logprobs"] = json::array();
                for (const auto& other : each->token.top)
                    one["top_logprobs"].push_back(score(other.token, other.log_probability));
                content.push_back(std::move(one));
            }
            return {{"content", std::move(content)}};
        }
        json made{{"tokens", json::array()}, {"token_logprobs", json::array()}, {"top_logprobs", json::array()}};
        for (const piece* each : pieces) {
            made["tokens"].push_back(from_.at().words.decode({&each->token.token, 1}, {}));
            made["token_logprobs"].push_back(*each->token.log_probability);
            json top = json::object();
            for (const auto& other : each->token.top)
                top[from_.at().words.decode({&other.token, 1}, {})] = other.log_probability;
            made["top_logprobs"].push_back(std::move(top));
        }
        return made;
    }

    const exchange& from_;
    std::string id_;
    std::time_t created_;
};

} // namespace server
