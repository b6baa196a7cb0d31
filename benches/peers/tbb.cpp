// oneTBB's flow graph: a continue_node per node. With -DLIGHTWEIGHT the nodes have the policy of that name, which
// oneTBB's manual has for bodies that take little time: the thread that finishes a node calls its successors, and
// makes no task of them. Nodes that could run side by side then run one after the other.

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/version.h>

#include <deque>

#include "flow.h"

namespace {

using tbb::flow::continue_msg;
#ifdef LIGHTWEIGHT
constexpr const char* NAME = "oneTBB, lightweight nodes, ";
using Task = tbb::flow::continue_node<continue_msg, tbb::flow::lightweight>;
#else
constexpr const char* NAME = "oneTBB ";
using Task = tbb::flow::continue_node<continue_msg>;
#endif

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
  return bench::serve(NAME + std::string() + TBB_runtime_version(), subject.measures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::serve_or_say([&] { return program(bench::passes_of(argc, argv)); });
}
