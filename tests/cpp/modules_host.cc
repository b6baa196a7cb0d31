// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A host that brings its own code, over outrigger.hpp: loaded, launched, captured, and in a built graph with named
// arguments. The first device compiles OpenCL C. Returns 0 if results hold what they should, else the line that found
// something else.

#include <outrigger/outrigger.hpp>

#include <cstring>

#define EXPECT(condition) \
  do {                    \
    if (!(condition)) return __LINE__ % 256; \
  } while (false)

namespace {

constexpr std::string_view kSource = R"(
__kernel void affine(__global float* x, float by, int plus) {
  size_t i = get_global_id(0);
  x[i] = x[i] * by + plus;
}
__kernel void sums(__global float* x, __local float* group, long scale) {
  size_t own = get_local_id(0);
  group[own] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (size_t i = 0; i < get_local_size(0); i++) sum += group[i];
  x[get_global_id(0)] = sum * scale;
}
)";
constexpr otr::Grid kGrid{{4}, {4}};
constexpr std::size_t kCount = 16;

bool holds(const otr::Buffer& buffer, otr::StreamRef stream, float expected) {
  float values[kCount] = {};
  if (!buffer.download(values, sizeof values, stream)) return false;
  for (const float value : values) {
    if (value != expected) return false;
  }
  return true;
}

}  // namespace

int main() {
  const otr::Device device(0);
  auto stream = otr::Stream::create(device);
  EXPECT(stream);
  auto buffer = otr::Buffer::allocate(device, kCount * sizeof(float), *stream);
  EXPECT(buffer && stream->fill(buffer->address(), buffer->bytes(), 1.0F));

  // Compiled by a thread of the library; a kernel waits for it, and outlives its module.
  auto module = otr::Module::load(device, otr::CodeFormat::opencl_c, kSource, nullptr, OTR_MODULE_BACKGROUND);
  EXPECT(module);
  auto affine = module->kernel("affine");
  auto sums = module->kernel("sums");
  EXPECT(affine && sums && module->loaded() && *module->loaded());
  { const otr::Module gone = std::move(*module); }
  EXPECT(module->id() == 0);

  // Arguments of all kinds, each at its own alignment.
  EXPECT(affine->launch(*stream, kGrid, otr::Arguments().buffer(*buffer).value(2.0F).value(std::int32_t{1})));
  EXPECT(sums->launch(*stream, kGrid, otr::Arguments().buffer(*buffer).local(4 * sizeof(float)).value(std::int64_t{5})));
  EXPECT(holds(*buffer, *stream, 60));

  // Captured: nothing runs until the replay.
  {
    auto capture = otr::Capture::begin(*stream);
    EXPECT(capture);
    EXPECT(affine->launch(*stream, kGrid, otr::Arguments().buffer(*buffer).value(0.5F).value(std::int32_t{0})));
    auto graph = capture->end();
    EXPECT(graph);
    auto exec = graph->instantiate();
    EXPECT(exec && holds(*buffer, *stream, 60));
    EXPECT(exec->replay(*stream) && exec->replay(*stream) && holds(*buffer, *stream, 15));
  }

  // Built, with an argument that each replay may have anew.
  {
    auto graph = otr::Graph::create(device);
    EXPECT(graph);
    auto first = graph->add_fill({}, buffer->address(), buffer->bytes(), 3.0F);
    EXPECT(first);
    const auto arguments = otr::Arguments().buffer(*buffer).value(2.0F).value(std::int32_t{0});
    auto second = graph->add({*first}, *affine, kGrid, arguments);
    EXPECT(second && graph->name_argument("plus", *second, 2));
    EXPECT(!graph->name_argument("beyond", *second, 3));
    auto exec = graph->instantiate();
    EXPECT(exec && exec->replay(*stream) && holds(*buffer, *stream, 6));
    EXPECT(exec->bind_argument("plus", std::int32_t{-7}));
    EXPECT(exec->replay(*stream) && holds(*buffer, *stream, -1));
    const auto wide = exec->bind_argument("plus", std::int64_t{1});
    EXPECT(!wide && wide.error().code() == OTR_ERR_INVALID_ARGUMENT);
    const auto unknown = exec->bind_argument("minus", std::int32_t{1});
    EXPECT(!unknown && std::strstr(unknown.error().what(), "minus") != nullptr);
    EXPECT(exec->replay(*stream) && holds(*buffer, *stream, -1));
  }

  // What is wrong is said, and changes nothing.
  const auto broken = otr::Module::load(device, otr::CodeFormat::opencl_c, "__kernel void f() {\n  undeclared();\n}\n");
  EXPECT(!broken && std::strstr(broken.error().what(), "undeclared();") != nullptr);
  const auto missing = otr::Module::load(device, otr::CodeFormat::opencl_c, kSource)->kernel("no_such_kernel");
  EXPECT(!missing && std::strstr(missing.error().what(), "no_such_kernel") != nullptr);
  EXPECT(!affine->launch(*stream, kGrid, otr::Arguments().buffer(*buffer).value(2.0F)));
  EXPECT(!affine->launch(*stream, otr::Grid{{0}, {4}}, otr::Arguments().buffer(*buffer).value(1.0F).value(std::int32_t{9})));
  EXPECT(stream->synchronize() && holds(*buffer, *stream, -1));
  return 0;
}
