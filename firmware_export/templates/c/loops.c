#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns") /* keep loops from becoming calls of memset or memcpy */
#endif
#if defined(__clang__) && __clang_major__ < 15 && defined(__ARM_FEATURE_MVE)
#define MODEL_WITHOUT_MVE 1 /* Clang 14 crashes when it vectorizes some loops. */
#pragma clang attribute push(__attribute__((target("no-mve"))), apply_to = function)
#endif
