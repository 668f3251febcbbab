// SPDX-License-Identifier: MIT
// Nothing: the object that the precompiled headers are made for.
