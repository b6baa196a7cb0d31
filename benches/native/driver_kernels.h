// The file of operators by hand, peers/kernels.cl: its text, the sizes that it is compiled for, and its kernels.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace bench {

constexpr int64_t ELEMENTS = 1 << 20;  // of elementwise operators
constexpr int64_t SUM_COUNT = 4 << 20;
constexpr int64_t SUM_CHUNK = 16384;
constexpr int64_t SOFTMAX_ROWS = 1024;
constexpr int64_t SOFTMAX_COLUMNS = 1024;
constexpr int64_t MM_SIZE = 512;
constexpr int64_t CONV_CHANNELS = 32;  // of input and output
constexpr int64_t CONV_SIZE = 32;      // height and width of the output
constexpr int64_t ATTENTION_HEADS = 4;
constexpr int64_t ATTENTION_LENGTH = 128;
constexpr int64_t ATTENTION_WIDTH = 64;  // peers/kernels.cl has it in its text

constexpr const char* KERNELS[] = {"add", "gelu", "sum_chunks", "sum_parts", "softmax", "mm", "convolution", "attention"};

inline std::string kernel_options() {
  std::string options = "-cl-std=CL1.2";
  const auto define = [&](const char* name, int64_t value) {
    options += std::string(" -D") + name + '=' + std::to_string(value);
  };
  define("SUM_COUNT", SUM_COUNT);
  define("SUM_CHUNK", SUM_CHUNK);
  define("SOFTMAX_COLUMNS", SOFTMAX_COLUMNS);
  define("MM_SIZE", MM_SIZE);
  define("CONV_CHANNELS", CONV_CHANNELS);
  define("CONV_SIZE", CONV_SIZE);
  define("ATTENTION_LENGTH", ATTENTION_LENGTH);
  return options;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(path + " cannot be read");
  return text.str();
}

}  // namespace bench
