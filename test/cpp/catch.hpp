// Catch2 2 (Debian 12) and 3 (Debian 13 and later) under one include.
#pragma once
#ifdef WEIR_CATCH2_V3
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
