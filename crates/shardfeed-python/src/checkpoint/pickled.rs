use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use shardfeed::checkpoint::{Id, Node, Pickle};

use crate::failure::ShardfeedError;

/// A class or function that a pickle names: its name, and nothing that could be called.
#[pyclass(frozen, module = "shardfeed._native")]
pub(crate) struct PickledGlobal {
    #[pyo3(get)]
    module: String,
    #[pyo3(get)]
    name: String,
}

#[pymethods]
impl PickledGlobal {
    fn __repr__(&self) -> String {
        format!("<{}.{}, not loaded>", self.module, self.name)
    }
}

/// An object that unpickling would make, as the call that would make it; nobody has called anything.
#[pyclass(module = "shardfeed._native")]
pub(crate) struct PickledCall {
    #[pyo3(get)]
    callable: Py<PyAny>,
    #[pyo3(get)]
    args: Py<PyAny>,
    #[pyo3(get)]
    state: Py<PyAny>,
}

#[pymethods]
impl PickledCall {
    fn __repr__(&self, python: Python<'_>) -> PyResult<String> {
        Ok(format!("<object of {}, not made>", self.callable.bind(python).repr()?))
    }
}

/// What a pickle says. Dictionaries, lists, tuples, text and numbers are themselves, sets are lists; classes and objects stay names and
/// calls, so that nothing is imported and nothing runs.
#[pyfunction]
pub(crate) fn read_pickle<'py>(python: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let refused = |reason: String| ShardfeedError::new_err(format!("not a readable pickle: {reason}"));
    let pickle = python.detach(|| Pickle::parse(bytes)).map_err(|error| refused(error.to_string()))?;
    // First everything by itself, then what each holds: lists may hold themselves. Tuples cannot, and come after what they hold.
    let mut values: Vec<Bound<'py, PyAny>> = Vec::with_capacity(pickle.nodes().len());
    for node in pickle.nodes() {
        let value = single(python, node, &values).map_err(refused);
        values.push(value??);
    }
    let of = |id: &Id| &values[*id as usize];
    for (node, value) in pickle.nodes().iter().zip(&values) {
        match node {
            Node::List(items) | Node::Set(items) => {
                let list = value.cast::<PyList>()?;
                items.iter().try_for_each(|item| list.append(of(item)))?;
            }
            Node::Dict(entries) => {
                let dictionary = value.cast::<PyDict>()?;
                entries.iter().try_for_each(|(key, value)| dictionary.set_item(of(key), of(value)))?;
            }
            Node::Object(object) => {
                let mut call = value.cast::<PickledCall>()?.borrow_mut();
                call.callable = of(&object.callable).clone().unbind();
                call.args = of(&object.args).clone().unbind();
                if let Some(state) = &object.state {
                    call.state = of(state).clone().unbind();
                }
                // Ordered dictionaries are made by a call, and then filled.
                if object.state.is_none() && !object.entries.is_empty() {
                    let entries = PyDict::new(python);
                    for (key, value) in &object.entries {
                        entries.set_item(of(key), of(value))?;
                    }
                    call.state = entries.into_any().unbind();
                }
            }
            _ => {}
        }
    }
    Ok(of(&pickle.root()).clone())
}

/// A value without what it holds, but for tuples.
fn single<'py>(
    python: Python<'py>,
    node: &Node<'_>,
    before: &[Bound<'py, PyAny>],
) -> Result<PyResult<Bound<'py, PyAny>>, String> {
    let none = || python.None();
    Ok(Ok(match node {
        Node::None => none().into_bound(python),
        Node::Bool(value) => PyBool::new(python, *value).to_owned().into_any(),
        Node::Int(value) => PyInt::new(python, *value).into_any(),
        Node::Float(value) => PyFloat::new(python, *value).into_any(),
        Node::Text(text) => PyString::new(python, text).into_any(),
        Node::Bytes(bytes) => PyBytes::new(python, bytes).into_any(),
        Node::List(_) | Node::Set(_) => PyList::empty(python).into_any(),
        Node::Dict(_) => PyDict::new(python).into_any(),
        Node::Tuple(items) => {
            let items: Option<Vec<_>> = items.iter().map(|id| before.get(*id as usize)).collect();
            let items = items.ok_or("a tuple that holds what comes after it")?;
            return Ok(PyTuple::new(python, items).map(Bound::into_any));
        }
        Node::Global(global) => {
            let (module, name) = (global.module.to_string(), global.name.to_string());
            return Ok(Bound::new(python, PickledGlobal { module, name }).map(Bound::into_any));
        }
        Node::Object(_) => {
            let call = PickledCall { callable: none(), args: none(), state: none() };
            return Ok(Bound::new(python, call).map(Bound::into_any));
        }
        Node::Wide(_) => return Err("a number that nothing in a checkpoint can need".to_owned()),
        Node::Persistent(_) => return Err("something that is kept outside of it".to_owned()),
    }))
}
