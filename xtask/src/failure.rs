//! Why a step stopped the run.

use std::fmt;

/// One message for the person at the terminal; it names the command or the file at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// A heading with one finding to a line below it.
    pub(crate) fn findings(heading: &str, findings: &[String]) -> Self {
        let mut message = heading.to_owned();
        for finding in findings {
            message.push_str("\n  ");
            message.push_str(finding);
        }
        Self(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
