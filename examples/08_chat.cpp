// SPDX-License-Identifier: MIT
// Chat: open a model directory or a GGUF file and talk to it. The second turn computes only what is new.
// test:
#include <kvcache/chat.hpp>

#include <iostream>

int main(int argc, char** argv) {
    auto chat = kvcache::open_chat(argc > 1 ? argv[1] : "examples/models/worlds-2m");
    if (!chat) {
        std::cerr << chat.error().message << '\n';
        return 1;
    }
    for (const char* question : {"Who is Ella?", "Where does she live?"}) {
        const auto answer = chat->say(question, std::cout);
        if (!answer) {
            std::cerr << answer.error().message << '\n';
            return 1;
        }
        std::cout << "\n[" << answer->reused << " tokens reused, " << answer->prefilled << " computed]\n";
    }
}
