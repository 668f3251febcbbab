// SPDX-License-Identifier: MIT
// tokenize --model DIR: JSON lines {"text", "add_special_tokens"} in, {"ids", "decoded"} out.
#include <kvcache/text/tokenizer.hpp>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
    const auto words = kvcache::tokenizer::open(argv[2]);
    (void)argc;
    if (!words) {
        std::cerr << words.error().field << ": " << words.error().message << "\n";
        return 1;
    }
    std::string line;
    while (std::getline(std::cin, line)) {
        auto j = kvcache::parse_json(line, "line");
        const auto ids =
            words->encode((*j)["text"].get<std::string>(), {.add_special_tokens = j->value("add_special_tokens", true),
                                                            .parse_special = j->value("parse_special", true)});
        kvcache::json out;
        if (!ids) {
            out["error"] = ids.error().message;
        } else {
            out["ids"] = kvcache::json::array();
            for (auto t : *ids)
                out["ids"].push_back(kvcache::index_of(t));
            out["decoded"] = words->decode(*ids, {});
        }
        std::cout << out.dump() << "\n";
    }
}
