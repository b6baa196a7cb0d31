// Taskflow: a task per node, on an executor with two threads.

#include <taskflow/taskflow.hpp>

#include "flow.h"

namespace {

tf::Executor& executor() {
  static tf::Executor two_threads(2);
  return two_threads;
}

class Graph {
 public:
  template <typename Body>
  void chain(int nodes, Body body) {
    tf::Task before;
    for (int i = 0; i < nodes; ++i) {
      tf::Task task = flow_.emplace([body] { body(0); });
      if (i > 0) before.precede(task);
      before = task;
    }
  }

  template <typename Body>
  void layers(Body body) {
    tf::Task before = join();
    for (int layer = 0; layer < bench::LAYERS; ++layer) {
      tf::Task after = join();
      for (int i = 0; i < bench::WIDTH; ++i) {
        tf::Task task = flow_.emplace([body, i] { body(i); });
        before.precede(task);
        task.precede(after);
      }
      before = after;
    }
  }

  void run() { executor().run(flow_).wait(); }

 private:
  tf::Task join() {
    return flow_.emplace([] {});
  }

  tf::Taskflow flow_;
};

int program(uint64_t passes) {
  bench::FlowSubject<Graph> subject(passes);
  return bench::serve(std::string("Taskflow ") + tf::version(), subject.measures());
}

}  // namespace

int main(int argc, char** argv) {
  return bench::serve_or_say([&] { return program(bench::passes_of(argc, argv)); });
}
