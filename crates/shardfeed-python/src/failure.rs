use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shardfeed::Error;
use shardfeed::checkpoint::ItemFailure;

create_exception!(
    shardfeed,
    ShardfeedError,
    PyException,
    "Data, a state or a checkpoint that is not as it should be; the message names it and says what to do."
);

pub(crate) fn add(python: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ShardfeedError", python.get_type::<ShardfeedError>())
}

/// What a caller got wrong is a `ValueError`; what the system refuses an `OSError` with its number, so that a file that is missing is a
/// `FileNotFoundError`; everything else is about the data.
pub(crate) fn raise(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, message)),
            None => PyOSError::new_err(message),
        },
        Error::NoFiles { .. } => pyo3::exceptions::PyFileNotFoundError::new_err(message),
        Error::Glob { .. }
        | Error::Invalid(_)
        | Error::Budget { .. }
        | Error::Tail { .. }
        | Error::NoStep { .. }
        | Error::Rank(_)
        | Error::Settings(_) => PyValueError::new_err(message),
        Error::CheckpointDamaged(failures) => {
            let error = ShardfeedError::new_err(message);
            if failures.0.iter().all(ItemFailure::is_other_than_described) {
                let places = failures
                    .0
                    .iter()
                    .map(|failure| (failure.path.to_string_lossy(), &failure.item, failure.offset));
                let noted = Python::attach(|python| {
                    error.value(python).setattr("other_than_described", PyTuple::new(python, places)?)
                });
                if let Err(noted) = noted {
                    return noted;
                }
            }
            error
        }
        _ => ShardfeedError::new_err(message),
    }
}
