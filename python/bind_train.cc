// Config and Trainer. The GIL is released while a step, a run, a validation or a file is under way.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/log.h"
#include "models/hf_io.h"
#include "nlohmann/json.hpp"
#include "python/bindings.h"
#include "python/tensor_convert.h"
#include "train/config.h"
#include "train/trainer.h"

namespace meshfold::python {
namespace {

namespace py = pybind11;
using train::Config;
using train::Trainer;

// numpy converts lists, arrays of any integer type and torch tensors.
using IdArray = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

py::object JsonToPython(const nlohmann::json& value) {
  return py::module_::import("json").attr("loads")(value.dump());
}

int32_t CheckedId(int64_t id, int64_t bound, const char* what) {
  if (id < 0) return kIgnoredTarget;
  if (id < bound) return static_cast<int32_t>(id);
  throw py::value_error(absl::StrCat("[step] ", what, " ", id, " out of range [0, ", bound, ")"));
}

// [B, S] ids and labels as one micro-batch of B documents. labels[t] is compared with the logits at
// t - 1, as Hugging Face does.
MicroBatch ToMicroBatch(const py::dict& batch, int64_t vocab_size) {
  if (!batch.contains("input_ids")) {
    throw py::value_error(
        "[step] a batch is a dict with 'input_ids' [batch, sequence] and "
        "optionally 'labels' of the same shape");
  }
  IdArray ids = IdArray::ensure(batch["input_ids"]);
  IdArray labels = batch.contains("labels") ? IdArray::ensure(batch["labels"]) : ids;
  if (!ids || !labels) throw py::value_error("[step] 'input_ids' and 'labels' must be integers");
  if (ids.ndim() != 2 || labels.ndim() != 2 || ids.shape(0) != labels.shape(0) ||
      ids.shape(1) != labels.shape(1)) {
    throw py::value_error("[step] 'input_ids' and 'labels' must have one shape [batch, sequence]");
  }
  int64_t rows = ids.shape(0), cols = ids.shape(1);
  MicroBatch out;
  out.cu_seqlens = {0};
  out.num_sequences = rows;
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t s = 0; s < cols; ++s) {
      if (ids.at(b, s) < 0) throw py::value_error("[step] negative id in 'input_ids'");
      out.tokens.push_back(CheckedId(ids.at(b, s), vocab_size, "token id"));
      out.targets.push_back(s + 1 < cols ? CheckedId(labels.at(b, s + 1), vocab_size, "label")
                                         : kIgnoredTarget);
      out.positions.push_back(static_cast<int32_t>(s));
      out.num_valid += out.targets.back() >= 0 ? 1 : 0;
    }
    out.cu_seqlens.push_back(static_cast<int32_t>((b + 1) * cols));
  }
  return out;
}

// A batch, or a list of them that are the micro-batches of one step.
GlobalBatch ToGlobalBatch(const py::object& batch, int64_t vocab_size) {
  GlobalBatch out;
  if (py::isinstance<py::dict>(batch)) {
    out.micro_batches.push_back(ToMicroBatch(batch.cast<py::dict>(), vocab_size));
  } else {
    for (const py::handle& item : batch) {
      out.micro_batches.push_back(ToMicroBatch(py::reinterpret_borrow<py::dict>(item), vocab_size));
    }
  }
  if (out.micro_batches.empty()) throw py::value_error("[step] no micro-batch in the batch");
  for (const MicroBatch& micro_batch : out.micro_batches) {
    out.num_valid += micro_batch.num_valid;
    out.num_samples += micro_batch.num_sequences;
  }
  return out;
}

// A trainer with the logger that it needs. The tensors that Python holds keep it alive: their
// memory is its pool's.
class PyTrainer : public std::enable_shared_from_this<PyTrainer> {
 public:
  PyTrainer(const Config& config, const std::string& resume) {
    py::gil_scoped_release release;
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(config, {resume}, logger_);
    py::gil_scoped_acquire acquire;
    trainer_ = ValueOrRaise(std::move(trainer));
  }

  py::object Step(const py::object& batch) {
    absl::StatusOr<train::StepMetrics> metrics = absl::UnknownError("not run");
    if (batch.is_none()) {
      py::gil_scoped_release release;
      metrics = trainer_->Step();
    } else {
      GlobalBatch converted = ToGlobalBatch(batch, trainer_->model().config.vocab_size);
      py::gil_scoped_release release;
      metrics = trainer_->Step(converted);
    }
    return JsonToPython(train::ToJson(ValueOrRaise(std::move(metrics))));
  }

  void Run() {
    absl::Status status;
    {
      py::gil_scoped_release release;
      status = trainer_->Run();
    }
    RaiseIfError(status);
  }

  py::dict Evaluate(int64_t max_batches) {
    absl::StatusOr<train::ValidationResult> result = absl::UnknownError("not run");
    {
      py::gil_scoped_release release;
      result = trainer_->Validate(max_batches);
    }
    train::ValidationResult value = ValueOrRaise(std::move(result));
    py::dict out;
    out["loss"] = value.loss;
    out["tokens"] = value.tokens;
    out["samples"] = value.samples;
    return out;
  }

  std::map<std::string, SharedTensor> StateDict() {
    std::map<std::string, SharedTensor> state;
    trainer_->model().layers->VisitParameters([&](Parameter& parameter) {
      state[parameter.name] = {shared_from_this(), parameter.value.data()};
    });
    return state;
  }

  void LoadStateDict(const py::dict& state) {
    std::map<std::string, Parameter*> parameters;
    for (Parameter* parameter : ParametersOf(*trainer_->model().layers)) {
      parameters[parameter->name] = parameter;
    }
    for (const auto& [name, parameter] : parameters) {
      if (!state.contains(name)) {
        throw py::value_error(absl::StrCat("[load_state_dict] '", name, "' is missing"));
      }
    }
    ScopedExecContext scope(trainer_->runtime().context());
    for (const auto& [key, value] : state) {
      std::string name = py::str(key);
      auto it = parameters.find(name);
      if (it == parameters.end()) {
        throw py::value_error(absl::StrCat("[load_state_dict] '", name, "' is not in the model"));
      }
      LoadParameter(*it->second, value);
    }
    trainer_->optimizer().CopyToMasters();
  }

  std::string Save() {
    py::gil_scoped_release release;
    absl::StatusOr<std::string> path = trainer_->Save();
    py::gil_scoped_acquire acquire;
    return ValueOrRaise(std::move(path));
  }

  void SaveHf(const std::string& directory) {
    absl::Status status;
    {
      py::gil_scoped_release release;
      ScopedExecContext scope(trainer_->runtime().context());
      const train::BuiltModel& model = trainer_->model();
      status = models::WriteHf(directory, model.config, *model.layers, {});
    }
    RaiseIfError(status);
  }

  void Load(const std::string& directory) {
    absl::Status status;
    {
      py::gil_scoped_release release;
      status = trainer_->Load(directory);
    }
    RaiseIfError(status);
  }

  int64_t step() const { return trainer_->step(); }
  const Config& config() const { return trainer_->config(); }

 private:
  static void LoadParameter(Parameter& parameter, const py::handle& value) {
    using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;
    FloatArray array = FloatArray::ensure(value);
    if (!array) {
      throw py::value_error(
          absl::StrCat("[load_state_dict] '", parameter.name, "' is not an array of numbers"));
    }
    std::vector<int64_t> dims(array.shape(), array.shape() + array.ndim());
    const Shape shape(dims);
    if (shape != parameter.shape) {
      throw py::value_error(absl::StrCat("[load_state_dict] '", parameter.name, "' has shape ",
                                         shape.ToString(), ", wanted ",
                                         parameter.shape.ToString()));
    }
    Tensor view = Tensor::FromStorage(
        Storage::Wrap(array.mutable_data(), array.nbytes(), DeviceKind::kHost, nullptr), shape,
        DType::kF32, 0, shape.cols());
    CurrentBackend().Copy(view, parameter.value.data());
    parameter.value.BumpVersion();
  }

  Logger logger_;
  std::unique_ptr<Trainer> trainer_;
};

void BindConfig(py::module_& module) {
  py::class_<Config>(module, "Config", "A run's settings; `meshfold config --doc` lists the keys.")
      .def_static(
          "load",
          [](const std::string& path, const std::vector<std::string>& overrides) {
            return ValueOrRaise(train::LoadConfig(path, overrides));
          },
          py::arg("path"), py::arg("overrides") = std::vector<std::string>(),
          "Reads a YAML file; overrides are \"section.key=value\" strings.")
      .def_static(
          "parse",
          [](const std::string& text, const std::vector<std::string>& overrides) {
            return ValueOrRaise(train::ParseConfig(text, "config", overrides));
          },
          py::arg("text"), py::arg("overrides") = std::vector<std::string>(), "Reads YAML text.")
      .def("to_yaml", &train::ResolvedYaml, "The resolved config: every key with its value.")
      .def("__repr__", &train::ResolvedYaml);
}

}  // namespace

void BindTrain(py::module_& module) {
  BindConfig(module);
  py::class_<PyTrainer, std::shared_ptr<PyTrainer>>(
      module, "Trainer",
      "One training run. Building it allocates everything; resume is 'auto' (the "
      "newest checkpoint of run.dir), 'none' or a checkpoint directory.")
      .def(py::init<const Config&, const std::string&>(), py::arg("config"),
           py::arg("resume") = "none")
      .def("step", &PyTrainer::Step, py::arg("batch") = py::none(),
           "One optimizer step on the config's data, on a batch {'input_ids': [B, S], 'labels': "
           "[B, S]}, or on a list of them as micro-batches. Returns the step's metrics.")
      .def("run", &PyTrainer::Run, "Trains to train.steps, writing run.dir.")
      .def("evaluate", &PyTrainer::Evaluate, py::arg("max_batches") = 0,
           "Loss over the validation split.")
      .def("state_dict", &PyTrainer::StateDict, "Parameters by name; tensors share memory.")
      .def("load_state_dict", &PyTrainer::LoadStateDict, py::arg("state"),
           "Copies every parameter from arrays; names and shapes must match.")
      .def("save", &PyTrainer::Save, "Writes a checkpoint; returns its directory.")
      .def("save_hf", &PyTrainer::SaveHf, py::arg("directory"),
           "Writes config.json and safetensors that transformers loads.")
      .def("load", &PyTrainer::Load, py::arg("directory"), "Restores a checkpoint.")
      .def_property_readonly("current_step", &PyTrainer::step)
      .def_property_readonly("config", &PyTrainer::config);
}

}  // namespace meshfold::python
