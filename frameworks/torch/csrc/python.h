//! For the functions of `torch_outrigger._C`: parses arguments and translates exceptions. A C++
//! exception must never reach the interpreter; `bound` catches it for all of them.
#pragma once

#include <Python.h>

#include "gil.h"

#include <torch/csrc/Exceptions.h>

namespace outrigger {

/// The function that Python calls: `Body` with its exceptions translated.
template <PyObject* (*Body)(PyObject*)>
PyObject* bound(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  return Body(arguments);
  END_HANDLE_TH_ERRORS
}

/// Thrown by the parsers where Python has its exception set already.
struct PythonError : python_error {
  PythonError() {
    persist();
  }
};

/// Parses a tuple of arguments by the format of PyArg_ParseTuple.
template <class... Targets>
void parse(PyObject* arguments, const char* format, Targets*... targets) {
  if (!PyArg_ParseTuple(arguments, format, targets...)) {
    throw PythonError();
  }
}

/// The text of a Python string, which lives as long as that.
inline const char* text_of(PyObject* object) {
  const char* text = PyUnicode_AsUTF8(object);
  if (text == nullptr) {
    throw PythonError();
  }
  return text;
}

/// Makes a call that hands out a string, and gives that to Python.
template <class Call>
PyObject* string_from(const Call& body) {
  char* text = nullptr;
  call([&] { return body(&text); });
  const std::string result = otr::take(text);
  return PyUnicode_FromStringAndSize(result.data(), static_cast<Py_ssize_t>(result.size()));
}

/// The result of a function that returns nothing.
inline PyObject* none() {
  Py_RETURN_NONE;
}

}  // namespace outrigger
