// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The C++ example of graphs as a function, for tests/examples.rs.

#include <cstdio>
#include <exception>

#define main example_main
#include "../../examples/graph-cpp/graph.cc"
#undef main

extern "C" int outrigger_graph_example_cpp() noexcept {
  try {
    return example_main();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
