// oneTBB's flow graph: a continue_node per node.

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/version.h>

#include <deque>

#include "flow.h"

namespace {

using tbb::flow::continue_msg;
using Task = tbb::flow::continue_node<continue_msg>;

class Graph {
 public:
  template <typename Body>
  void chain(int nodes, Body body) {
    for (int i = 0; i < nodes; ++i) {
      tasks_.emplace_back(graph_, [body](const continue_msg&) { body(0); });
      if (i > 0) tbb::flow::make_edge(tasks_[i - 1], tasks_[i]);
    }
    first_ = &tasks_.front();
  }

  template <typename Body>
  void layers(Body body) {
    first_ = &join();
    Task* before = first_;
    for (int layer = 0; layer < bench::LAYERS; ++layer) {
      Task& after = join();
      for (int i = 0; i < bench::WIDTH; ++i) {
        Task& task = tasks_.emplace_back(graph_, [body, i](const continue_msg&) { body(i); });
        tbb::flow::make_edge(*before, task);
        tbb::flow::make_edge(task, after);
      }
      before = &after;
    }
  }

  void run() {
    first_->try_put(continue_msg());
    graph_.wait_for_all();
  }

 private:
  Task& join() {
    return tasks_.emplace_back(graph_, [](const continue_msg&) {});
  }

  tbb::flow::graph graph_;
  std::deque<Task> tasks_;  // they do not move
  Task* first_ = nullptr;
};

int program(uint64_t passes) {
  bench::FlowSubject<Graph> subject(passes);
  return bench::serve(std::string("oneTBB ") + TBB_runtime_version(), subject.measures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::serve_or_say([&] { return program(bench::passes_of(argc, argv)); });
}
