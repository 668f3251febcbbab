// SPDX-License-Identifier: MIT
#include <kvcache/model/huggingface/impl/checkpoint.hpp>
#include <kvcache/model/huggingface/impl/config.hpp>
#include <kvcache/model/huggingface/impl/safetensors.hpp>
#include <kvcache/model/huggingface/impl/safetensors_header.hpp>
