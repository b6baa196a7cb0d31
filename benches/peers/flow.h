// Parts that the peers with graphs of tasks share: the data of the nodes, and the measures over a graph type
// that can build a chain and layers joined by an empty task, and run them to their end.
//
// `Graph` has: Graph(); `void chain(int nodes, Body)`; `void layers(Body)` with `Body` called as
// `body(position)`; `void run()`, which waits.
#pragma once

#include <memory>
#include <vector>

#include "../native/wire.h"
#include "../native/work.h"

namespace bench {

template <typename Graph>
class FlowSubject {
 public:
  explicit FlowSubject(uint64_t passes) : values_(WIDTH * STRIDE) {
    for (int i = 0; i < WIDTH; ++i) {
      const uint64_t address = reinterpret_cast<uint64_t>(&values_[i * STRIDE]);
      add_args_.push_back({address});
      spin_args_.push_back({address, passes});
    }
  }

  std::vector<Measure> measures() {
    return {
        {"chain_1", [this](int64_t n) { return chain(1, n); }},
        {"chain_1000", [this](int64_t n) { return chain(CHAIN, n); }},
        {"wide8", [this](int64_t n) { return wide8(n); }},
        {"wide8_spin", [this](int64_t n) { return wide8_spin(n); }},
        {"capture", [this](int64_t n) { return build(n); }},
    };
  }

 private:
  std::vector<float> values_;
  std::vector<AddArgs> add_args_;
  std::vector<SpinArgs> spin_args_;

  auto add_body() const {
    return [args = add_args_.data()](int position) { add_one(&args[position], sizeof *args, 0); };
  }

  double replay(Graph& graph, int64_t repetitions) {
    graph.run();
    values_.assign(values_.size(), 0.0f);
    return timed([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) graph.run();
    })(repetitions);
  }

  double chain(int nodes, int64_t repetitions) {
    Graph graph;
    graph.chain(nodes, add_body());
    const double nanoseconds = replay(graph, repetitions);
    expect_additions(values_[0], repetitions * nodes);
    return nanoseconds;
  }

  double wide8(int64_t repetitions) {
    Graph graph;
    graph.layers(add_body());
    const double nanoseconds = replay(graph, repetitions);
    for (int i = 0; i < WIDTH; ++i) expect_additions(values_[i * STRIDE], repetitions * LAYERS);
    return nanoseconds;
  }

  double wide8_spin(int64_t repetitions) {
    Graph graph;
    graph.layers([args = spin_args_.data()](int position) { spin(&args[position], sizeof *args, 0); });
    return replay(graph, repetitions);
  }

  double build(int64_t repetitions) {
    double nanoseconds = 0;
    for (int64_t i = 0; i < repetitions; ++i) {
      const double start = now_ns();
      const auto graph = std::make_unique<Graph>();
      graph->chain(CHAIN, add_body());
      nanoseconds += now_ns() - start;
    }
    return nanoseconds;
  }
};

}  // namespace bench
