// SPDX-License-Identifier: MIT
// flags: -march=native
#include <kvcache/chat.hpp>

int main() {}
