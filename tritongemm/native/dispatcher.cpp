// The native dispatcher: a table that maps the key of a call to its plan, and the launch.
//
// The Python path (tritongemm/ops) makes all decisions: which problem a call is, which config runs
// it, what goes to torch. It then adds the result to this table. A later call with the same key is
// found and launched here. There are two entry points: `run` for tritongemm's own functions, and
// `Entry` for operations in torch's dispatcher (aten's, and those that a compiler records:
// ops/registered.py), which torch calls without the interpreter lock. A call that is not found, or
// whose launch fails, goes to the Python path, which is the reference for all behaviour.
//
// Thread safety: the table is read under a shared lock. A launch works on a copy of its parameters
// on the stack, so that plans need no lock.

#define PY_SSIZE_T_CLEAN
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <pybind11/stl.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

// ---- plans --------------------------------------------------------------------------------------

// CUlaunchConfig and CUlaunchAttribute (cuda.h), whose layout the driver's ABI fixes.
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  const void* attributes;
  unsigned count;
};
using LaunchKernel = int (*)(const LaunchConfig*, void* kernel, void** parameters, void** extra);
using ReplaceAddress = int (*)(void* map, void* address);

// Values of a call, by index: addresses of a, b, c, d; alpha, beta; the address of scratch.
constexpr int A = 0, B = 1, C = 2, D = 3, ALPHA = 4, BETA = 5, SCRATCH = 6, VALUES = 7;
struct Values {
  uint64_t address[VALUES] = {};
  double number[VALUES] = {};
};

struct Patch {
  uint32_t offset, value;
  int64_t added;
};

// Torch's allocator; on CUDA also a pluggable one that a program installed.
c10::Allocator* allocator_of(c10::Device device) {
  return device.is_cuda() ? at::detail::getCUDAHooks().getCUDADeviceAllocator()
                          : c10::GetAllocator(device.type());
}

constexpr size_t MAX_PARAMETER_BYTES = 4096, MAX_PARAMETERS = 128;

struct Launch {
  LaunchConfig config{};
  void* kernel = nullptr;
  std::string attributes, parameters;
  std::vector<uint32_t> offsets;
  std::vector<Patch> words, floats, maps;
};

struct Plan {
  LaunchKernel launch_kernel = nullptr;
  ReplaceAddress replace_address = nullptr;
  std::vector<Launch> launches;
  int64_t scratch_bytes = 0;

  // False if the driver refused a launch or there is no memory for scratch: the Python path then
  // computes C again. Throws if that is impossible because D is C and an earlier launch may have
  // written it.
  bool run(Values& values, void* stream, c10::Device device) const {
    at::DataPtr scratch;  // freed at once: the allocator reuses it in stream order
    if (scratch_bytes) {
      try {
        scratch = allocator_of(device)->allocate(scratch_bytes);
      } catch (const c10::Error&) {
        return false;
      }
      values.address[SCRATCH] = reinterpret_cast<uint64_t>(scratch.get());
    }
    for (const Launch& x : launches) {
      alignas(64) char parameters[MAX_PARAMETER_BYTES];
      void* pointers[MAX_PARAMETERS];
      std::memcpy(parameters, x.parameters.data(), x.parameters.size());
      for (const Patch& p : x.words) {
        uint64_t address = values.address[p.value] + p.added;
        std::memcpy(parameters + p.offset, &address, sizeof address);
      }
      for (const Patch& p : x.floats) {
        float number = static_cast<float>(values.number[p.value]);
        std::memcpy(parameters + p.offset, &number, sizeof number);
      }
      for (const Patch& p : x.maps) {
        uint64_t address = values.address[p.value] + p.added;
        if ((address & 15) ||
            replace_address(parameters + p.offset, reinterpret_cast<void*>(address)))
          return refused(x, values);
      }
      for (size_t i = 0; i < x.offsets.size(); ++i) pointers[i] = parameters + x.offsets[i];
      LaunchConfig config = x.config;
      config.stream = stream;
      config.attributes = x.attributes.data();
      if (launch_kernel(&config, x.kernel, pointers, nullptr)) return refused(x, values);
    }
    return true;
  }

  bool refused(const Launch& x, const Values& values) const {
    TORCH_CHECK(&x == launches.data() || values.address[C] != values.address[D], "tritongemm: the CUDA driver refused launch ",
                &x - launches.data() + 1, " of ", launches.size(), " of a product");
    return false;
  }
};

// ---- the table ----------------------------------------------------------------------------------

struct Operands {
  const at::Tensor* a = nullptr;
  const at::Tensor* b = nullptr;
  const at::Tensor* d = nullptr;
  const at::Tensor* out = nullptr;
  const at::Tensor* up = nullptr;  // the other half of a gated layer's B, where B is the gate's
  double alpha = 1, beta = 0;
  int dtype_out = -1;
};

constexpr int MAX_RANK = 5;
constexpr size_t MAX_WORDS = 2 + 5 * (1 + 2 * MAX_RANK);

struct Key {
  size_t count = 0;
  std::array<uint64_t, MAX_WORDS> words;

  void add(uint64_t word) { words[count++] = word; }
  bool operator==(const Key& other) const {
    return count == other.count &&
           !std::memcmp(words.data(), other.words.data(), count * sizeof(uint64_t));
  }
};

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t h = 0x9E3779B97F4A7C15ull * (key.count + 1);  // 2^64 / the golden ratio
    for (size_t i = 0; i < key.count; ++i) {
      h ^= key.words[i];
      h *= 0xFF51AFD7ED558CCDull;  // a constant of MurmurHash3's finaliser
      h ^= h >> 32;
    }
    return h;
  }
};

struct Spans {
  int64_t a = 0, b = 0, c = 0, d = 0;
  bool in_place = false;  // D may be C itself
};

// An entry: a plan, or, with `plan` null, the reason why the call goes to torch.
struct Answer {
  std::shared_ptr<const Plan> plan;
  int reason = 0;
  std::vector<int64_t> shape, strides;
  at::ScalarType dtype = at::kFloat;
  Spans spans;
};

// Never destroyed: a thread may still call at the end of the process.
using Table = std::unordered_map<Key, std::shared_ptr<const Answer>, Hash>;
std::shared_mutex& table_lock = *new std::shared_mutex;
Table& table = *new Table;
size_t table_limit = 4096;
// Generation of the table: an entry resolved before the table was emptied must not be added to it.
int64_t generation = 0;

// Whether axes have names, in a torch that has those (up to 2.12).
template <class T>
auto named(const T& x, int) -> decltype(x.has_names()) {
  return x.has_names();
}
template <class T>
bool named(const T&, long) {
  return false;
}

// Whether sizes, strides and an address describe the tensor completely. False for a lazy conjugate,
// and for a freed storage: the address of a view into it is only an offset.
bool usable(const at::Tensor& x) {
  return x.defined() && x.layout() == at::kStrided && !x.is_nested() && x.has_storage() &&
         x.unsafeGetTensorImpl()->storage_initialized() && x.dim() <= MAX_RANK &&
         (x.is_cuda() || x.is_cpu()) && !x.is_conj() && !named(x, 0);
}

void add_tensor(Key& key, const at::Tensor& x, uint64_t address) {
  key.add(static_cast<uint64_t>(x.dim()) | static_cast<uint64_t>(x.scalar_type()) << 8 |
          static_cast<uint64_t>(static_cast<uint8_t>(x.device().type())) << 16 |
          static_cast<uint64_t>(static_cast<uint8_t>(x.device().index())) << 24 |
          (address & 15) << 32);
  for (int64_t size : x.sizes()) key.add(size);
  for (int64_t stride : x.strides()) key.add(stride);
}

bool tf32() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

uint64_t address_of(const at::Tensor& x) {
  return reinterpret_cast<uint64_t>(x.const_data_ptr());
}

bool fill(int operation, const Operands& x, Key& key, Values& values) {
  if (!usable(*x.a) || !usable(*x.b) || (x.d && !usable(*x.d)) || (x.out && !usable(*x.out)) ||
      (x.up && !usable(*x.up)))
    return false;
  // Must come first: it gives a lazy (copy-on-write) tensor, which A or D may share, its own
  // memory.
  values.address[C] = x.out ? reinterpret_cast<uint64_t>(x.out->mutable_data_ptr()) : 0;
  values.address[A] = address_of(*x.a);
  values.address[B] = address_of(*x.b);
  values.address[D] = x.d ? address_of(*x.d) : 0;
  uint64_t up = x.up ? address_of(*x.up) : 0;
  // Empty tensors, lazy zeros and freed storages.
  if (!values.address[A] || !values.address[B] || (x.d && !values.address[D]) ||
      (x.out && !values.address[C]) || (x.up && !up))
    return false;
  values.number[ALPHA] = x.alpha;
  values.number[BETA] = x.beta;
  // B alone is float32 where A is read in 16 bits.
  bool fp32 = x.b->scalar_type() == at::kFloat || x.b->scalar_type() == at::kComplexFloat;
  key.add(static_cast<uint64_t>(operation) | static_cast<uint64_t>(x.d != nullptr) << 16 |
          static_cast<uint64_t>(x.out != nullptr) << 17 |
          static_cast<uint64_t>(x.alpha == 1) << 18 | static_cast<uint64_t>(x.beta == 1) << 19 |
          static_cast<uint64_t>(x.beta == 0) << 20 | static_cast<uint64_t>(fp32 && tf32()) << 21 |
          static_cast<uint64_t>(x.up != nullptr) << 22 |
          static_cast<uint64_t>(x.dtype_out + 1) << 32);
  add_tensor(key, *x.a, values.address[A]);
  add_tensor(key, *x.b, values.address[B]);
  if (x.d) add_tensor(key, *x.d, values.address[D]);
  if (x.out) add_tensor(key, *x.out, values.address[C]);
  if (x.up) {  // a plan is for one distance between the two in memory
    add_tensor(key, *x.up, up);
    key.add(up - values.address[B]);
  }
  return true;
}

// Fills in the key and the addresses. False, with an empty key, for calls that this table cannot
// hold.
bool read(int operation, const Operands& x, Key& key, Values& values) {
  bool known = false;
  try {
    known = fill(operation, x, key, values);
  } catch (const c10::Error&) {  // a tensor without an address; the Python path reports why
  }
  if (!known) key.count = 0;
  return known;
}

std::shared_ptr<const Answer> find(const Key& key) {
  std::shared_lock<std::shared_mutex> lock(table_lock);
  auto found = table.find(key);
  return found == table.end() ? nullptr : found->second;
}

bool overlap(uint64_t x, int64_t x_bytes, uint64_t y, int64_t y_bytes) {
  return x < y + y_bytes && y < x + x_bytes;
}

// Factors that the Python path accepts without a further check (ops/execute.judge).
bool usual(double alpha, double beta) {
  auto within = [](double x) { return std::abs(x) >= 0x1p-126 && std::abs(x) <= 0x1p62; };
  return within(alpha) && (beta == 0 || within(beta));
}

enum class Verdict { UNKNOWN, TORCHS, DONE };

Verdict answered(int operation, const Operands& x, Key& key, at::Tensor& result, int& reason) {
  Values values;
  if (!read(operation, x, key, values)) return Verdict::UNKNOWN;
  std::shared_ptr<const Answer> answer = find(key);
  if (!answer) return Verdict::UNKNOWN;
  if (x.d && !usual(x.alpha, x.beta)) return Verdict::UNKNOWN;
  if (!answer->plan) {
    reason = answer->reason;
    return Verdict::TORCHS;
  }
  c10::Device device = x.a->device();
  if (x.out) {
    const Spans& spans = answer->spans;
    uint64_t c = values.address[C];
    if (overlap(c, spans.c, values.address[A], spans.a) ||
        overlap(c, spans.c, values.address[B], spans.b) ||
        (x.d && overlap(c, spans.c, values.address[D], spans.d) &&
         !(spans.in_place && c == values.address[D])))
      return Verdict::UNKNOWN;
    result = *x.out;
  } else {
    try {
      result = at::Tensor(at::detail::empty_strided_generic(
          answer->shape, answer->strides, allocator_of(device),
          c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU),
          answer->dtype));
    } catch (const c10::Error&) {
      return Verdict::UNKNOWN;
    }
    values.address[C] = reinterpret_cast<uint64_t>(result.mutable_data_ptr());
  }
  void* stream = nullptr;
  if (device.is_cuda())
    stream = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getStream(device)
                 .native_handle();
  if (!answer->plan->run(values, stream, device)) return Verdict::UNKNOWN;
  return Verdict::DONE;
}

// `key` stays empty if this table cannot hold the call. Needs no interpreter lock.
Verdict run(int operation, const Operands& x, Key& key, at::Tensor& result, int& reason) {
  Verdict verdict = answered(operation, x, key, result, reason);
  if (verdict != Verdict::DONE) result = at::Tensor();
  return verdict;
}

// When a small product without an entry is judged, as in ops/sights.py.
struct Patience {
  int64_t sights = 1, early_sights = 1, early_shapes = 0;
  double products = 0, bytes = 0, float32_products = 0;
} patience;

// Call counts of small products that have no entry yet, by hash: two keys with one hash are judged
// too early.
constexpr size_t MAX_SEEN = 65536;
std::mutex& seen_lock = *new std::mutex;
std::unordered_map<size_t, int64_t>& seen = *new std::unordered_map<size_t, int64_t>;
int64_t judged_early = 0;

// Makes room: kinds that were judged stay, unless there is nothing else.
void forget_kinds() {
  for (auto kind = seen.begin(); kind != seen.end();)
    kind = kind->second < patience.sights ? seen.erase(kind) : std::next(kind);
  if (seen.size() >= MAX_SEEN) seen.clear();
}

// Whether it is time to judge a call, which is seen once more.
bool due(const Key& key, const Operands& x, double products) {
  double bytes = static_cast<double>(x.a->nbytes()) + static_cast<double>(x.b->nbytes());
  std::lock_guard<std::mutex> lock(seen_lock);
  if (products >= patience.products || bytes >= patience.bytes) return true;
  if (seen.size() >= MAX_SEEN) forget_kinds();
  int64_t& times = seen[Hash()(key)];
  if (++times >= patience.sights) return true;
  bool float32 = x.a->scalar_type() == at::kFloat && !tf32();
  if (!float32 || static_cast<double>(times) * products < patience.float32_products) {
    if (times != patience.early_sights || judged_early >= patience.early_shapes) return false;
    ++judged_early;
  }
  times = patience.sights;  // from now on
  return true;
}

// ---- reasons ------------------------------------------------------------------------------------

constexpr int MAX_REASONS = 128, FEWER_FLOPS = 0, NOTHING = 1, OTHER_REASONS = 2,
              SEEN_TOO_LITTLE = 3;
std::mutex& reasons_lock = *new std::mutex;
std::vector<std::string>& reasons = *new std::vector<std::string>;

int reason_number(const std::string& text) {
  std::lock_guard<std::mutex> lock(reasons_lock);
  for (size_t i = 0; i < reasons.size(); ++i)
    if (reasons[i] == text) return static_cast<int>(i);
  if (reasons.size() >= MAX_REASONS) return OTHER_REASONS;
  reasons.push_back(text);
  return static_cast<int>(reasons.size() - 1);
}

// ---- entries in torch's dispatcher --------------------------------------------------------------

// The order of an overload's operands on the stack.
enum class Form {
  PRODUCT, PRODUCT_OUT, SUM, SUM_OUT, SUM_IN_PLACE, SUM_ACTIVATED, GATED, GATED_PAIR, FACTOR
};

struct Slot {
  // By activation, mostly one, "none"; of a gated layer of interleaved rows "silu interleaved"; of
  // a product with a factor by the activation whose derivative it is.
  std::vector<std::pair<std::string, int>> operations;
  Form form;
  // A call with fewer multiply-adds (batch * M * N * K) goes to torch.
  double least;
  // Whether small products wait until they are due.
  bool patient;
  c10::SafeKernelFunction torchs, python;
  std::atomic<bool> removed{false};  // about to release `python`
  std::atomic<int64_t> taken{0};
  std::array<std::atomic<int64_t>, MAX_REASONS> declined{};

  Slot(std::vector<std::pair<std::string, int>> operations, Form form, double least,
       bool patient, c10::SafeKernelFunction torchs, c10::SafeKernelFunction python)
      : operations(std::move(operations)), form(form), least(least),
        patient(patient), torchs(std::move(torchs)), python(std::move(python)) {}

  // The operation with an activation, or -1.
  int operation(const std::string& activation) const {
    for (const auto& [name, number] : operations)
      if (name == activation) return number;
    return -1;
  }
};

// Whether torch records what is done to x, or it carries a tangent or a lazy negative.
bool recorded(const at::Tensor& x) {
  if (!x.defined() || x.is_neg()) return true;
  const auto* meta = x.unsafeGetTensorImpl()->autograd_meta();
  if (!meta) return false;
  return (x.requires_grad() && c10::GradMode::is_enabled()) || x._fw_grad(0).defined();
}

bool number(const c10::IValue& value, double& found) {
  if (value.isDouble()) found = value.toDouble();
  else if (value.isInt()) found = static_cast<double>(value.toInt());
  else if (value.isBool()) found = value.toBool();
  else return false;
  return true;
}

struct Entry final : c10::OperatorKernel {
  explicit Entry(std::shared_ptr<Slot> slot) : slot(std::move(slot)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    std::shared_ptr<Slot> held = slot;  // this functor may be removed while torch's kernel runs
    Slot& s = *held;
    size_t arguments = op.schema().arguments().size();
    const c10::IValue* x = stack->data() + (stack->size() - arguments);
    Operands operands;
    int reason = 0;
    at::Tensor result;
    Verdict verdict = Verdict::UNKNOWN;
    int operation = find_operands(s, x, operands);
    bool known = operation >= 0;
    if (known && operands.b->dim()) {
      double products = static_cast<double>(operands.a->numel()) *
                        static_cast<double>(operands.b->size(-1));
      bool small = products < s.least;
      if (!products || small) {
        reason = small ? FEWER_FLOPS : NOTHING;
        verdict = Verdict::TORCHS;
      } else {
        Key key;
        verdict = run(operation, operands, key, result, reason);
        if (verdict == Verdict::UNKNOWN && s.patient && key.count &&
            !due(key, operands, products)) {
          reason = SEEN_TOO_LITTLE;
          verdict = Verdict::TORCHS;
        }
      }
    }
    if (verdict == Verdict::DONE) {
      s.taken.fetch_add(1, std::memory_order_relaxed);
      torch::jit::drop(*stack, arguments);
      stack->emplace_back(std::move(result));
    } else if (verdict == Verdict::TORCHS) {
      s.declined[reason].fetch_add(1, std::memory_order_relaxed);
      s.torchs.callBoxed(op, keys, stack);
    } else {
      (s.removed ? s.torchs : s.python).callBoxed(op, keys, stack);
    }
  }

  // The number of the operation, or -1 for a call that the table cannot hold.
  static int find_operands(const Slot& s, const c10::IValue* x, Operands& found) {
    if (s.form == Form::GATED || s.form == Form::GATED_PAIR) {
      int bias = s.form == Form::GATED ? 2 : 3;
      found.a = &x[0].toTensor();
      found.b = &x[1].toTensor();
      if (s.form == Form::GATED_PAIR) found.up = &x[2].toTensor();
      if (!x[bias].isNone()) found.d = &x[bias].toTensor();
      found.beta = 1;
      bool interleaved = s.form == Form::GATED && x[4].toBool();
      return s.operation(x[bias + 1].toStringRef() + (interleaved ? " interleaved" : ""));
    }
    if (s.form == Form::FACTOR) {
      found.d = &x[0].toTensor();
      found.a = &x[1].toTensor();
      found.b = &x[2].toTensor();
      found.beta = 1;
      return number(x[3], found.alpha) ? s.operation(x[4].toStringRef()) : -1;
    }
    bool sum = s.form != Form::PRODUCT && s.form != Form::PRODUCT_OUT;
    found.a = &x[sum ? 1 : 0].toTensor();
    found.b = &x[sum ? 2 : 1].toTensor();
    if (sum) {
      found.d = &x[0].toTensor();
      if (!number(x[3], found.beta) || !number(x[4], found.alpha)) return -1;
      if (s.form == Form::SUM_OUT) found.out = &x[5].toTensor();
      if (s.form == Form::SUM_IN_PLACE) found.out = found.d;
    } else if (s.form == Form::PRODUCT_OUT) {
      found.out = &x[2].toTensor();
    }
    return s.operation(s.form == Form::SUM_ACTIVATED ? x[5].toStringRef() : "none");
  }

  std::shared_ptr<Slot> slot;
};

// An op's entry above its kernels, at autograd's key. A call that torch need not record goes on to
// the kernel below; any other to the entry registered before (torch.library.register_autograd),
// which is Python and costs about 4 us even if nothing is recorded.
struct Unrecorded final : c10::OperatorKernel {
  explicit Unrecorded(c10::SafeKernelFunction python) : python(std::move(python)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    size_t arguments = op.schema().arguments().size();
    for (size_t i = stack->size() - arguments; i < stack->size(); ++i) {
      const c10::IValue& x = (*stack)[i];
      if (x.isTensorList() || (x.isTensor() && x.toTensor().defined() && recorded(x.toTensor()))) {
        c10::SafeKernelFunction held = python;  // this functor may be removed while it runs
        held.callBoxed(op, keys, stack);
        return;
      }
    }
    at::AutoDispatchBelowAutograd below;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }

  c10::SafeKernelFunction python;
};

struct Installed {
  std::shared_ptr<Slot> slot;  // none of an entry at autograd's key
  std::unique_ptr<torch::Library> library;
};

// ---- Python -------------------------------------------------------------------------------------

template <class T>
void destroy(PyObject* capsule) {
  delete static_cast<T*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
}

template <class T>
PyObject* capsule_of(T&& value, const char* name) {
  using V = std::decay_t<T>;
  return PyCapsule_New(new V(std::forward<T>(value)), name, destroy<V>);
}

template <class T>
T* content(PyObject* capsule, const char* name) {
  return static_cast<T*>(PyCapsule_GetPointer(capsule, name));
}

constexpr const char* PLAN = "tritongemm.Plan";
constexpr const char* INSTALLED = "tritongemm.Installed";
constexpr const char* KERNEL = "tritongemm.Kernel";

template <class F>
PyObject* translated(F&& f) {
  try {
    return f();
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
  }
  return nullptr;
}

void* pointer(const py::handle& value) { return reinterpret_cast<void*>(value.cast<uintptr_t>()); }

std::vector<Patch> patches(const py::handle& list) {
  std::vector<Patch> found;
  for (auto x : list) {
    auto item = x.cast<py::tuple>();
    found.push_back({item[0].cast<uint32_t>(), item[1].cast<uint32_t>(),
                     item[2].cast<int64_t>()});
    if (found.back().value >= VALUES) throw std::invalid_argument("no such value of a call");
  }
  return found;
}

// plan(launch, replace, launches, scratch_bytes): launch and replace are the addresses of
// cuLaunchKernelEx and cuTensorMapReplaceAddress. A launch is a dict.
PyObject* make_plan(PyObject*, PyObject* args) {
  return translated([&]() -> PyObject* {
    auto given = py::reinterpret_borrow<py::tuple>(args);
    auto plan = std::make_shared<Plan>();
    plan->launch_kernel = reinterpret_cast<LaunchKernel>(pointer(given[0]));
    plan->replace_address = reinterpret_cast<ReplaceAddress>(pointer(given[1]));
    for (auto item : given[2]) {
      Launch x;
      auto grid = item["grid"].cast<std::array<unsigned, 3>>();
      auto block = item["block"].cast<std::array<unsigned, 3>>();
      std::copy(grid.begin(), grid.end(), x.config.grid);
      std::copy(block.begin(), block.end(), x.config.block);
      x.config.shared = item["shared"].cast<unsigned>();
      x.config.count = item["count"].cast<unsigned>();
      x.kernel = pointer(item["kernel"]);
      x.attributes = item["attributes"].cast<std::string>();
      x.parameters = item["parameters"].cast<std::string>();
      x.offsets = item["offsets"].cast<std::vector<uint32_t>>();
      x.words = patches(item["words"]);
      x.floats = patches(item["floats"]);
      x.maps = patches(item["maps"]);
      if (x.parameters.size() > MAX_PARAMETER_BYTES || x.offsets.size() > MAX_PARAMETERS)
        throw std::invalid_argument("a launch has more parameters than this module copies");
      auto inside = [&](const std::vector<Patch>& list, size_t bytes) {
        for (const Patch& p : list)
          if (p.offset + bytes > x.parameters.size())
            throw std::invalid_argument("a value lies outside the parameters");
      };
      inside(x.words, 8);
      inside(x.floats, 4);
      inside(x.maps, 128);
      plan->launches.push_back(std::move(x));
    }
    plan->scratch_bytes = given[3].cast<int64_t>();
    return capsule_of(std::shared_ptr<const Plan>(std::move(plan)), PLAN);
  });
}

const at::Tensor* tensor(PyObject* object) {
  if (object == Py_None) return nullptr;
  if (!THPVariable_Check(object)) throw std::invalid_argument("an operand is no tensor");
  return &THPVariable_Unpack(object);
}

bool operands_of(PyObject* const* args, Operands& x) {
  x.a = tensor(args[0]);
  x.b = tensor(args[1]);
  x.d = tensor(args[2]);
  x.out = tensor(args[3]);
  x.alpha = PyFloat_AsDouble(args[4]);
  x.beta = PyFloat_AsDouble(args[5]);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  if (args[6] != Py_None)
    x.dtype_out = static_cast<int>(reinterpret_cast<THPDtype*>(args[6])->scalar_type);
  x.up = tensor(args[7]);
  return x.a && x.b;
}

// First arguments of offer and refuse: generation, operation, a, b, d, out, alpha, beta, dtype_out,
// up.
constexpr Py_ssize_t ASKED = 10;
struct Asked {
  int64_t found_in;
  Operands operands;
  Key key;
  bool known;  // whether this table can hold the call

  explicit Asked(PyObject* const* args) : found_in(PyLong_AsLongLong(args[0])) {
    Values values;
    known = operands_of(args + 2, operands) &&
            read(static_cast<int>(PyLong_AsLong(args[1])), operands, key, values);
  }
};

void keep(const Key& key, Answer&& answer, int64_t found_in) {
  std::unique_lock<std::shared_mutex> lock(table_lock);
  if (found_in != generation) return;
  if (table.size() >= table_limit)  // as in the Python path: drop a quarter
    for (size_t i = 0; i <= table_limit / 4 && !table.empty(); ++i) table.erase(table.begin());
  table[key] = std::make_shared<const Answer>(std::move(answer));
}

// offer(*asked, plan, shape, strides, dtype, spans)
PyObject* offer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    if (count != ASKED + 5) throw std::invalid_argument("offer takes 15 arguments");
    Asked asked(args);
    if (!asked.known) Py_RETURN_FALSE;
    args += ASKED;
    auto* plan = content<std::shared_ptr<const Plan>>(args[0], PLAN);
    if (!plan) throw py::error_already_set();
    Answer answer;
    answer.plan = *plan;
    answer.shape = py::handle(args[1]).cast<std::vector<int64_t>>();
    answer.strides = py::handle(args[2]).cast<std::vector<int64_t>>();
    answer.dtype = reinterpret_cast<THPDtype*>(args[3])->scalar_type;
    if (args[4] != Py_None) {
      auto s = py::handle(args[4]).cast<std::tuple<int64_t, int64_t, int64_t, int64_t, bool>>();
      answer.spans = {std::get<0>(s), std::get<1>(s), std::get<2>(s), std::get<3>(s),
                      std::get<4>(s)};
    } else if (asked.operands.out) {
      throw std::invalid_argument("a call with out= needs spans");
    }
    keep(asked.key, std::move(answer), asked.found_in);
    Py_RETURN_TRUE;
  });
}

// refuse(*asked, reason)
PyObject* refuse(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    if (count != ASKED + 1) throw std::invalid_argument("refuse takes 11 arguments");
    Asked asked(args);
    if (!asked.known) Py_RETURN_FALSE;
    Answer answer;
    answer.reason = reason_number(py::handle(args[ASKED]).cast<std::string>());
    keep(asked.key, std::move(answer), asked.found_in);
    Py_RETURN_TRUE;
  });
}

// Whether only the operands decide a call of plain tensors: no mode, transform or autocast is
// active (ops/dispatch.py).
bool plain(PyObject* object) {
  return THPVariable_CheckExact(object) && !recorded(THPVariable_Unpack(object));
}

bool nobody_else() {
  const auto& local = c10::impl::tls_local_dispatch_key_set();
  return !at::impl::torch_function_mode_enabled() &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
         !local.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
         !at::autocast::is_autocast_enabled(at::kCUDA) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

// Whether a kernel may write to `object`, apart from its shape and strides (ops/dispatch.writable).
bool writable(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  const at::Tensor& x = THPVariable_Unpack(object);
  return !recorded(x) && !x.requires_grad() &&
         (!x.is_inference() || c10::InferenceMode::is_enabled());
}

// run(operation, a, b[, d[, beta, alpha[, out]]]): the result, False if the call goes to torch, or
// None if the Python path must run it. d may be None. `below`: the call is already below autograd,
// autocast and modes, and has no out; never False.
template <bool below>
PyObject* run_plain(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return translated([&]() -> PyObject* {
    auto ours = [](PyObject* x) { return below ? THPVariable_CheckExact(x) : plain(x); };
    bool adds = count > 3 && args[3] != Py_None, into = count > 6;
    if (count < 3 || !ours(args[1]) || !ours(args[2]) || (adds && !ours(args[3])) ||
        (into && (below || !writable(args[6]))) || torch::jit::tracer::isTracing() ||
        (!below && !nobody_else()))
      Py_RETURN_NONE;
    Operands x;
    x.a = &THPVariable_Unpack(args[1]);
    x.b = &THPVariable_Unpack(args[2]);
    if (into) x.out = &THPVariable_Unpack(args[6]);
    if (adds) {
      x.d = &THPVariable_Unpack(args[3]);
      x.beta = count > 5 ? PyFloat_AsDouble(args[4]) : 1;
      x.alpha = count > 5 ? PyFloat_AsDouble(args[5]) : 1;
      if (PyErr_Occurred()) {  // an integer that no double holds
        PyErr_Clear();
        Py_RETURN_NONE;
      }
    }
    at::Tensor result;
    Key key;
    int reason = 0, operation = static_cast<int>(PyLong_AsLong(args[0]));
    Verdict verdict = Verdict::UNKNOWN;
    {  // a full launch queue blocks, perhaps on a callback in Python
      py::gil_scoped_release unlocked;
      verdict = run(operation, x, key, result, reason);
    }
    if (verdict == Verdict::TORCHS && !below) Py_RETURN_FALSE;
    if (verdict != Verdict::DONE) Py_RETURN_NONE;
    if (into) result.unsafeGetTensorImpl()->bump_version();  // autograd may have saved it
    return THPVariable_Wrap(std::move(result));
  });
}

// `name`: as aten::mm.out
c10::OperatorHandle operation_of(const std::string& name) {
  size_t dot = name.find('.');
  std::string base = name.substr(0, dot);
  std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(base.c_str(), overload.c_str());
}

// standing(name, key): the kernel currently registered for an overload, such as aten::mm.out.
PyObject* standing(PyObject*, PyObject* args) {
  return translated([&]() -> PyObject* {
    auto given = py::reinterpret_borrow<py::tuple>(args);
    auto key = c10::parseDispatchKey(given[1].cast<std::string>());
    auto kernel = operation_of(given[0].cast<std::string>()).getComputedKernelForDispatchKey(key);
    return capsule_of(std::move(kernel), KERNEL);
  });
}

// The library that registers `functor` for an op at a key, on top of the current kernel.
template <class Functor>
std::unique_ptr<torch::Library> registered(const std::string& name, c10::DispatchKey key,
                                           std::unique_ptr<Functor> functor) {
  size_t colons = name.find("::");
  if (colons == std::string::npos) throw std::invalid_argument(name + " has no namespace");
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, name.substr(0, colons), key, __FILE__, __LINE__);
  library->impl(name.substr(colons + 2).c_str(),
                torch::CppFunction::makeFromBoxedFunctor(std::move(functor)));
  return library;
}

// install(name, key, operations, form, least, patient, torchs): registers an entry on top of the
// current one, which is the Python path. `operations`: pairs of an activation and a number.
// `torchs`: the kernel registered before that (standing()); None: the Python path calls torch.
PyObject* install(PyObject*, PyObject* args) {
  return translated([&]() -> PyObject* {
    auto given = py::reinterpret_borrow<py::tuple>(args);
    auto name = given[0].cast<std::string>();
    auto key = c10::parseDispatchKey(given[1].cast<std::string>());
    c10::SafeKernelFunction python = operation_of(name).getComputedKernelForDispatchKey(key);
    c10::SafeKernelFunction* torchs = &python;
    if (!given[6].is_none()) torchs = content<c10::SafeKernelFunction>(given[6].ptr(), KERNEL);
    if (!torchs) throw py::error_already_set();
    Installed installed;
    installed.slot = std::make_shared<Slot>(
        given[2].cast<std::vector<std::pair<std::string, int>>>(),
        static_cast<Form>(given[3].cast<int>()),
        given[4].cast<double>(), given[5].cast<bool>(), *torchs, python);
    installed.library = registered(name, key, std::make_unique<Entry>(installed.slot));
    return capsule_of(std::move(installed), INSTALLED);
  });
}

// pass_unrecorded(name, key): an Unrecorded for an op, at a key of autograd such as AutogradCUDA.
PyObject* pass_unrecorded(PyObject*, PyObject* args) {
  return translated([&]() -> PyObject* {
    auto given = py::reinterpret_borrow<py::tuple>(args);
    auto name = given[0].cast<std::string>();
    auto key = c10::parseDispatchKey(given[1].cast<std::string>());
    Installed installed;
    installed.library = registered(
        name, key,
        std::make_unique<Unrecorded>(operation_of(name).getComputedKernelForDispatchKey(key)));
    return capsule_of(std::move(installed), INSTALLED);
  });
}

// remove(installed): restores the entry registered before.
PyObject* remove(PyObject*, PyObject* capsule) {
  return translated([&]() -> PyObject* {
    auto* installed = content<Installed>(capsule, INSTALLED);
    if (!installed) throw py::error_already_set();
    if (installed->slot) installed->slot->removed = true;
    installed->library.reset();
    Py_RETURN_NONE;
  });
}

// counts(installed) -> (taken, {reason: declined}); resets both to zero.
PyObject* counts(PyObject*, PyObject* capsule) {
  return translated([&]() -> PyObject* {
    auto* installed = content<Installed>(capsule, INSTALLED);
    if (!installed) throw py::error_already_set();
    std::vector<std::string> names;
    {
      std::lock_guard<std::mutex> lock(reasons_lock);
      names = reasons;
    }
    py::dict declined;
    for (size_t i = 0; i < names.size(); ++i)
      if (int64_t times = installed->slot->declined[i].exchange(0))
        declined[py::str(names[i])] = times;
    return py::make_tuple(installed->slot->taken.exchange(0), declined).release().ptr();
  });
}

// clear(limit) -> generation. Drops all entries; `limit`: the most entries from now on.
PyObject* clear(PyObject*, PyObject* limit) {
  return translated([&]() -> PyObject* {
    std::unique_lock<std::shared_mutex> lock(table_lock);
    table.clear();
    table_limit = py::handle(limit).cast<size_t>();
    return PyLong_FromLongLong(++generation);
  });
}

PyObject* size(PyObject*, PyObject*) {
  std::shared_lock<std::shared_mutex> lock(table_lock);
  return PyLong_FromSize_t(table.size());
}

// after_fork(): in a child process, where another thread of the parent may have held the locks.
PyObject* after_fork(PyObject*, PyObject*) {
  new (&table_lock) std::shared_mutex;
  new (&reasons_lock) std::mutex;
  new (&seen_lock) std::mutex;
  new (&seen) std::unordered_map<size_t, int64_t>;  // the parent may have been changing it
  judged_early = 0;
  table.clear();
  Py_RETURN_NONE;
}

// forget_sights(): small products wait again.
PyObject* forget_sights(PyObject*, PyObject*) {
  return translated([&]() -> PyObject* {
    std::lock_guard<std::mutex> lock(seen_lock);
    seen.clear();
    judged_early = 0;
    Py_RETURN_NONE;
  });
}

// set_patience(sights, early_sights, early_shapes, products, bytes, float32_products): small products
// are those of fewer multiply-adds and fewer bytes of A and B. They are judged when they are seen
// `sights` times; the first `early_shapes` of them when they are seen `early_sights` times; those in
// float32 as soon as the multiply-adds of their sights are `float32_products`.
PyObject* set_patience(PyObject*, PyObject* args) {
  return translated([&]() -> PyObject* {
    auto given = py::reinterpret_borrow<py::tuple>(args);
    std::lock_guard<std::mutex> lock(seen_lock);
    patience = {given[0].cast<int64_t>(), given[1].cast<int64_t>(), given[2].cast<int64_t>(),
                given[3].cast<double>(), given[4].cast<double>(), given[5].cast<double>()};
    Py_RETURN_NONE;
  });
}

// set_reasons(texts): the first reasons: FEWER_FLOPS, NOTHING, OTHER_REASONS, SEEN_TOO_LITTLE.
PyObject* set_reasons(PyObject*, PyObject* texts) {
  return translated([&]() -> PyObject* {
    auto given = py::handle(texts).cast<std::vector<std::string>>();
    std::lock_guard<std::mutex> lock(reasons_lock);
    if (reasons.empty()) reasons = given;
    Py_RETURN_NONE;
  });
}

PyMethodDef methods[] = {
    {"plan", make_plan, METH_VARARGS, nullptr},
    {"offer", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(offer)), METH_FASTCALL,
     nullptr},
    {"refuse", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(refuse)), METH_FASTCALL,
     nullptr},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_plain<false>)),
     METH_FASTCALL, nullptr},
    {"run_below", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run_plain<true>)),
     METH_FASTCALL, nullptr},
    {"standing", standing, METH_VARARGS, nullptr},
    {"install", install, METH_VARARGS, nullptr},
    {"pass_unrecorded", pass_unrecorded, METH_VARARGS, nullptr},
    {"remove", remove, METH_O, nullptr},
    {"counts", counts, METH_O, nullptr},
    {"clear", clear, METH_O, nullptr},
    {"size", size, METH_NOARGS, nullptr},
    {"after_fork", after_fork, METH_NOARGS, nullptr},
    {"forget_sights", forget_sights, METH_NOARGS, nullptr},
    {"set_patience", set_patience, METH_VARARGS, nullptr},
    {"set_reasons", set_reasons, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_dispatcher", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__dispatcher() { return PyModule_Create(&module); }
