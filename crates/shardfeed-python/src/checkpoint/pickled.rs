use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use shardfeed::checkpoint::{Id, Node, Pickle};

use crate::failure::ShardfeedError;

/// How deep values may lie in each other; those of checkpoints do some ten deep. Python lets go of objects of ours, and hashes tuples,
/// by recursion that nothing stops.
const NESTING_MAX: u32 = 200;

/// What a tuple that is a key may hold, with what the tuples in it hold: each time that it is looked for, all of it is hashed, as often
/// as it is there.
const KEY_VALUES_MAX: u64 = 1 << 10;

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
    fn __repr__(&self, python: Python<'_>) -> String {
        // No more than a name: anything else may be as large as it likes once it is written out.
        match self.callable.bind(python).cast::<PickledGlobal>() {
            Ok(global) => format!("<object of {}, not made>", global.get().__repr__()),
            Err(_) => "<object of something that has no name, not made>".to_owned(),
        }
    }
}

/// What a pickle says. Dictionaries, lists, tuples, text and numbers are themselves, sets are lists; classes and objects stay names and
/// calls, so that nothing is imported and nothing runs.
#[pyfunction]
pub(crate) fn read_pickle<'py>(python: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let refused = |reason: String| ShardfeedError::new_err(format!("not a readable pickle: {reason}"));
    let pickle = python.detach(|| Pickle::parse(bytes)).map_err(|error| refused(error.to_string()))?;
    python.detach(|| refuse_bottomless(&pickle)).map_err(refused)?;
    // First everything by itself, then what each holds. Tuples come after what they hold.
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

/// Refuses what holds itself, what is deeper than `NESTING_MAX`, and keys of more than `KEY_VALUES_MAX`.
fn refuse_bottomless(pickle: &Pickle<'_>) -> Result<(), String> {
    // Above what is looked at.
    const UNDER_WAY: u32 = u32::MAX;
    let nodes = pickle.nodes();
    // How deep each goes; 0 is not known yet.
    let mut depths = vec![0; nodes.len()];
    // Values above the one that is looked at, what of them is still to be looked at, and how deep they are as far as is known.
    let mut above: Vec<(usize, Vec<Id>, u32)> = Vec::new();
    for start in 0..nodes.len() {
        if depths[start] == 0 {
            depths[start] = UNDER_WAY;
            above.push((start, held(&nodes[start]), 1));
        }
        while let Some((at, left, depth)) = above.last_mut() {
            if let Some(next) = left.pop().map(|id| id as usize) {
                match depths[next] {
                    UNDER_WAY => return Err("a value that holds itself".to_owned()),
                    0 => {
                        depths[next] = UNDER_WAY;
                        above.push((next, held(&nodes[next]), 1));
                    }
                    known => *depth = (*depth).max(known + 1),
                }
            } else {
                let (at, depth) = (*at, *depth);
                depths[at] = depth;
                above.pop();
                if let Some((_, _, outer)) = above.last_mut() {
                    *outer = (*outer).max(depth + 1);
                }
            }
            if above.last().is_some_and(|(_, _, depth)| *depth > NESTING_MAX)
                || above.len() > NESTING_MAX as usize
            {
                return Err(format!("values that lie in each other more than {NESTING_MAX} deep"));
            }
        }
    }
    refuse_large_keys(nodes)
}

fn refuse_large_keys(nodes: &[Node<'_>]) -> Result<(), String> {
    let mut sizes: Vec<u64> = Vec::with_capacity(nodes.len());
    for node in nodes {
        sizes.push(match node {
            // It comes after what it holds.
            Node::Tuple(items) => items
                .iter()
                .map(|id| sizes.get(*id as usize).copied().unwrap_or(u64::MAX))
                .fold(1, u64::saturating_add),
            _ => 1,
        });
    }
    let is_large = |(key, _): &(Id, Id)| sizes[*key as usize] > KEY_VALUES_MAX;
    let has_large = nodes.iter().any(|node| match node {
        Node::Dict(entries) => entries.iter().any(is_large),
        Node::Object(object) => object.entries.iter().any(is_large),
        _ => false,
    });
    if has_large { Err(format!("a key of more than {KEY_VALUES_MAX} values")) } else { Ok(()) }
}

fn held(node: &Node<'_>) -> Vec<Id> {
    let both =
        |entries: &[(Id, Id)]| entries.iter().flat_map(|(key, value)| [*key, *value]).collect::<Vec<_>>();
    match node {
        Node::Tuple(items) | Node::List(items) | Node::Set(items) => items.clone(),
        Node::Dict(entries) => both(entries),
        Node::Object(object) => {
            let mut held = both(&object.entries);
            held.extend([object.callable, object.args]);
            held.extend(object.state);
            held
        }
        _ => Vec::new(),
    }
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
