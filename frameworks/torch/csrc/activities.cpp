//! The devices' work in torch.profiler: a plug-in of Kineto, which torch's wheels contain. Kineto says which operator a
//! thread is in; the runtime's profile keeps that with each piece of work. It must never throw, and never wait for a
//! stream.

#include "activities.h"

#include "runtime.h"

// The namespace that Kineto was built under, which its headers ask for.
#define KINETO_NAMESPACE libkineto
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include <c10/core/DeviceType.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace outrigger {
namespace {

using libkineto::ActivityType;

/// The words that Kineto has for the work of a device type.
struct Words {
  c10::DeviceType type;
  ActivityType kernel;
  ActivityType copy;
  ActivityType fill;
  ActivityType submission;
  ActivityType range;
};

constexpr Words kOutrigger{
    c10::DeviceType::PrivateUse1, ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
    ActivityType::PRIVATEUSE1_RUNTIME, ActivityType::GPU_USER_ANNOTATION};
constexpr Words kMtia{
    c10::DeviceType::MTIA, ActivityType::MTIA_CCP_EVENTS, ActivityType::MTIA_CCP_EVENTS, ActivityType::MTIA_CCP_EVENTS,
    ActivityType::MTIA_RUNTIME, ActivityType::MTIA_INSIGHT};

/// Numbers of torch's operators and ranges that a thread is in, the innermost last.
struct Places {
  uint64_t session = 0;
  std::vector<uint64_t> operators;
  std::vector<uint64_t> ranges;
};

Places& places() {
  thread_local Places mine;
  return mine;
}

/// Torch counts its operators in 32 bits, so that one number of the runtime has room for two.
void choose(const Places& now) {
  const auto last = [](const std::vector<uint64_t>& of) { return of.empty() ? 0 : of.back() & UINT32_MAX; };
  uint64_t previous = 0;
  warn_if_failed(otr_profile_correlate(last(now.ranges) << 32 | last(now.operators), &previous), "profiling");
}

struct Work {
  otr_profiled_work_t what;
  std::string name;
};

void keep(void* user, const otr_profiled_work_t* work) noexcept {
  static_cast<std::vector<Work>*>(user)->push_back({*work, work->name});
}

/// The call of the host that submits work of a kind, as traces name it.
const char* submission_of(uint32_t kind) {
  switch (kind) {
    case OTR_WORK_KERNEL: return "launch kernel";
    case OTR_WORK_OPERATOR: return "launch operator";
    case OTR_WORK_COPY: return "submit copy";
    case OTR_WORK_FILL: return "submit fill";
    case OTR_WORK_HOST_CALL: return "submit host call";
    case OTR_WORK_GRAPH: return "launch graph";
    default: return "submit collective";
  }
}

/// One recording, from start to stop.
class Session final : public libkineto::IActivityProfilerSession {
 public:
  Session(const Words& words, std::set<ActivityType> wanted) : words_(words), wanted_(std::move(wanted)) {
    static std::atomic<uint64_t> last{0};
    number_ = ++last;
  }

  ~Session() override {
    // A trace that was given up: the next one starts afresh.
    stop();
  }

  void start() override {
    otr_status_t* failed = otr_profile_start();
    running_ = failed == nullptr;
    if (!running_) {
      errors_.push_back(describe(failed));
      warn_if_failed(failed, "profiling the device");
    }
  }

  void stop() override {
    if (running_) {
      running_ = false;
      warn_if_failed(otr_profile_stop(&keep, &work_), "profiling the device");
    }
  }

  std::vector<std::string> errors() override {
    return errors_;
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start,
      int64_t end) override {
    if (work_.empty()) {
      return;
    }
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, device_type());
    buffer_->gpuOpCount = static_cast<int>(work_.size());
    for (const Work& work : work_) {
      show_submission(work, linked);
      if (work.what.outcome == OTR_OK) {
        show(work, linked);
      }
    }
    for (const auto& [key, range] : ranges_) {
      add(words_.range, range.name, range.begin, range.end, row(key.first));
      last().id = static_cast<int32_t>(key.second);
    }
    for (const auto& activity : buffer_->activities) {
      logger.handleGenericActivity(*activity);
    }
    // Kineto asks for one device; the others are told here.
    for (const uint32_t device : devices_) {
      if (device != *devices_.begin()) {
        logger.handleDeviceInfo(describe_device(device), start);
      }
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return devices_.empty() ? nullptr : std::make_unique<libkineto::DeviceInfo>(describe_device(*devices_.begin()));
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> all;
    for (const auto& [stream, row] : rows_) {
      all.push_back({row.number, row.number, row.device, row.name});
    }
    return all;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    push(id, &Places::operators);
  }
  void popCorrelationId() override {
    pop(&Places::operators);
  }
  void pushUserCorrelationId(uint64_t id) override {
    push(id, &Places::ranges);
  }
  void popUserCorrelationId() override {
    pop(&Places::ranges);
  }

 private:
  struct Row {
    int64_t device;
    int64_t number;
    std::string name;
  };
  struct Range {
    std::string name;
    int64_t begin;
    int64_t end;
  };

  /// "outrigger", a vendor's name, or "mtia".
  std::string device_type() const {
    return c10::DeviceTypeName(words_.type, /*lower_case=*/true);
  }

  void push(uint64_t id, std::vector<uint64_t> Places::* stack) {
    Places& now = places();
    if (now.session != number_) {
      // An earlier trace has ended within an operator, and left its numbers.
      now = {number_, {}, {}};
    }
    (now.*stack).push_back(id);
    choose(now);
  }

  void pop(std::vector<uint64_t> Places::* stack) {
    Places& now = places();
    if (now.session == number_ && !(now.*stack).empty()) {
      (now.*stack).pop_back();
      choose(now);
    }
  }

  libkineto::GenericTraceActivity& last() {
    return *buffer_->activities.back();
  }

  void add(ActivityType type, const std::string& name, int64_t begin, int64_t end, const Row& row) {
    buffer_->emplace_activity(buffer_->span, type, name);
    last().startTime = begin;
    last().endTime = end;
    last().device = static_cast<int32_t>(row.device);
    last().resource = row.number;
  }

  void link(const Work& work, const libkineto::getLinkedActivityCallback& linked, bool start) {
    const auto correlation = static_cast<int32_t>(work.what.correlation & UINT32_MAX);
    const auto number = static_cast<int32_t>(&work - work_.data() + 1);
    last().id = number;
    last().linked = correlation == 0 ? nullptr : linked(correlation);
    last().flow.id = static_cast<uint32_t>(number);
    last().flow.type = libkineto::kLinkAsyncCpuGpu;
    last().flow.start = start;
    add_metadata(last(), "correlation", int64_t{number});
  }

  void show_submission(const Work& work, const libkineto::getLinkedActivityCallback& linked) {
    if (wanted_.count(words_.submission) == 0) {
      return;
    }
    const Row thread{libkineto::processId(), static_cast<int64_t>(work.what.thread), {}};
    const auto begin = static_cast<int64_t>(work.what.submit_begin);
    add(words_.submission, submission_of(work.what.kind), begin, static_cast<int64_t>(work.what.submit_end), thread);
    last().threadId = static_cast<int32_t>(work.what.thread);
    link(work, linked, true);
    if (work.what.outcome == OTR_NOT_READY) {
      add_metadata(last(), "outcome", std::string("not finished when the profile ended"));
    } else if (work.what.outcome != OTR_OK) {
      add_metadata(last(), "outcome", "the stream failed with code " + std::to_string(work.what.outcome));
    }
  }

  void show(const Work& work, const libkineto::getLinkedActivityCallback& linked) {
    const ActivityType type = work.what.kind == OTR_WORK_COPY ? words_.copy
        : work.what.kind == OTR_WORK_FILL                     ? words_.fill
                                                              : words_.kernel;
    if (wanted_.count(type) == 0) {
      return;
    }
    const auto begin = static_cast<int64_t>(work.what.begin);
    const auto end = static_cast<int64_t>(work.what.end);
    const Row& on = row_of(work);
    add(type, work.name, begin, end, on);
    link(work, linked, false);
    add_metadata(last(), "device", on.device);
    add_metadata(last(), "stream", on.number);
    if (work.what.bytes != 0) {
      add_metadata(last(), "bytes", work.what.bytes);
      if (end > begin) {
        const double nanoseconds = static_cast<double>(end - begin);
        add_metadata(last(), "memory bandwidth (GB/s)", static_cast<double>(work.what.bytes) / nanoseconds);
      }
    }
    if (work.what.clock == OTR_CLOCK_HOST) {
      add_metadata(last(), "clock", std::string("host: the driver has no timestamps"));
    }
    const auto range = static_cast<int32_t>(work.what.correlation >> 32);
    const libkineto::ITraceActivity* user = range == 0 ? nullptr : linked(range);
    if (user != nullptr && wanted_.count(words_.range) != 0) {
      const auto [found, fresh] = ranges_.try_emplace({work.what.stream, range}, Range{user->name(), begin, end});
      found->second.begin = std::min(found->second.begin, begin);
      found->second.end = std::max(found->second.end, end);
    }
  }

  const Row& row(otr_stream_t stream) const {
    return rows_.at(stream);
  }

  /// The row of a stream: 0 is the default stream of its device, others are numbered as they appear.
  const Row& row_of(const Work& work) {
    const auto found = rows_.find(work.what.stream);
    if (found != rows_.end()) {
      return found->second;
    }
    const uint32_t device = work.what.device;
    devices_.insert(device);
    otr_stream_t standard = 0;
    warn_if_failed(otr_stream_default(device, &standard), "profiling the device");
    Row row{device, 0, "default stream"};
    if (work.what.stream != standard) {
      row.number = ++streams_[device];
      row.name = "stream " + std::to_string(work.what.stream);
    }
    return rows_.emplace(work.what.stream, std::move(row)).first->second;
  }

  libkineto::DeviceInfo describe_device(uint32_t device) const {
    auto info = otr::sized<otr_device_info_t>();
    warn_if_failed(otr_device_info(device, &info), "profiling the device");
    return {device, device + libkineto::kExceedMaxPid, device_type() + " " + std::to_string(device), info.name};
  }

  const Words words_;
  const std::set<ActivityType> wanted_;
  uint64_t number_ = 0;
  bool running_ = false;
  std::vector<std::string> errors_;
  std::vector<Work> work_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::set<uint32_t> devices_;
  std::map<otr_stream_t, Row> rows_;
  std::map<uint32_t, int64_t> streams_;
  /// By stream and number of torch's range: from the first to the last piece of work in it.
  std::map<std::pair<otr_stream_t, int32_t>, Range> ranges_;
};

class Activities final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "outrigger";
    return name;
  }

  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> all{kOutrigger.kernel, kOutrigger.copy,  kOutrigger.fill,
                                            kMtia.kernel,      kMtia.submission, kOutrigger.submission,
                                            kMtia.range,       kOutrigger.range};
    return all;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    // Submissions alone are asked for by every profile of the CPU, too.
    const auto any = [&wanted](const Words& words) {
      return wanted.count(words.kernel) + wanted.count(words.copy) + wanted.count(words.fill) != 0;
    };
    if (any(kMtia)) {
      return std::make_unique<Session>(kMtia, wanted);
    }
    return any(kOutrigger) ? std::make_unique<Session>(kOutrigger, wanted) : nullptr;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted, const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

}  // namespace

void register_activities() {
  static const bool registered = [] {
    libkineto::api().registerProfilerFactory([] { return std::make_unique<Activities>(); });
    return true;
  }();
  (void)registered;
}

}  // namespace outrigger
