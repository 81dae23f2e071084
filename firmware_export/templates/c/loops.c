#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns") /* no loop becomes a call of memset or memcpy */
#endif
