// SPDX-License-Identifier: MIT
#pragma once

// Everything that needs only Eigen, xsimd and xxHash. Readers of JSON and text have doors of their own.
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/core/tensor.hpp>
#include <kvcache/core/version.hpp>
