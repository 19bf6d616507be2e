//! Running the steps: a heading for each, a stop at the first failure, and the seconds at the end.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::steps::{Outcome, Setting, Step};

/// How one step went.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    took: Duration,
    /// What is said after the seconds: nothing for a step that simply held.
    remark: String,
}

/// Runs the steps and prints the table; the exit code says whether all held.
pub(crate) fn all(steps: &[Step], setting: &Setting) -> ExitCode {
    let (rows, failed) = in_order(steps, setting);
    println!("\n{}", table(&rows));
    match failed {
        None => {
            println!("All {} steps held.", steps.len());
            ExitCode::SUCCESS
        }
        Some((step, failure)) => {
            let left = steps.len() - rows.len();
            eprintln!("error: step `{step}`: {failure}");
            match left {
                0 => {}
                1 => eprintln!("(the step after it did not run)"),
                _ => eprintln!("(the {left} steps after it did not run)"),
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs until the end or the first failure.
fn in_order(steps: &[Step], setting: &Setting) -> (Vec<Row>, Option<(&'static str, Failure)>) {
    let mut rows = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        println!("\n==> [{}/{}] {}: {}", at + 1, steps.len(), step.name, step.about);
        let started = Instant::now();
        let result = (step.run)(setting);
        let took = started.elapsed();
        let (remark, failure) = match result {
            Ok(Outcome::Held) => (String::new(), None),
            Ok(Outcome::Skipped(why)) => {
                println!("skipped: {why}");
                (format!("skipped: {why}"), None)
            }
            Err(failure) => ("FAILED".to_owned(), Some(failure)),
        };
        rows.push(Row { name: step.name, took, remark });
        if let Some(failure) = failure {
            return (rows, Some((step.name, failure)));
        }
    }
    (rows, None)
}

/// The steps with their seconds, and the sum.
fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max("total".len());
    let mut text = format!("{:width$}  {:>8}\n", "step", "seconds");
    for row in rows {
        let line = format!("{:width$}  {:>8.1}  {}", row.name, row.took.as_secs_f64(), row.remark);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let total: Duration = rows.iter().map(|row| row.took).sum();
    let _ = writeln!(text, "{:width$}  {:>8.1}", "total", total.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&Setting) -> Result<Outcome, Failure>;

    const HOLDS: Check = |_| Ok(Outcome::Held);
    const IS_SKIPPED: Check = |_| Ok(Outcome::Skipped("nothing there".to_owned()));
    const FAILS: Check = |_| Err(Failure::new("`cargo nonsense` failed"));

    fn step(name: &'static str, run: Check) -> Step {
        Step { name, about: "", run }
    }

    fn setting() -> Setting {
        Setting { root: ".".into(), long: false }
    }

    #[test]
    fn the_run_stops_at_the_first_failure() {
        let steps = [step("first", HOLDS), step("second", FAILS), step("third", HOLDS)];
        let (rows, failed) = in_order(&steps, &setting());
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(failed, Some(("second", Failure::new("`cargo nonsense` failed"))));
    }

    #[test]
    fn a_skipped_step_does_not_stop_the_run() {
        let steps = [step("first", IS_SKIPPED), step("second", HOLDS)];
        let (rows, failed) = in_order(&steps, &setting());
        let remarks: Vec<&str> = rows.iter().map(|row| row.remark.as_str()).collect();
        assert_eq!(remarks, ["skipped: nothing there", ""]);
        assert_eq!(failed, None);
    }

    #[test]
    fn the_table_lines_up_and_sums() {
        let row = |name, millis, remark: &str| Row {
            name,
            took: Duration::from_millis(millis),
            remark: remark.to_owned(),
        };
        let rows = [row("format", 400, ""), row("clippy", 12_300, "FAILED")];
        let expected = "\
step     seconds
format       0.4
clippy      12.3  FAILED
total       12.7
";
        assert_eq!(table(&rows), expected);
    }
}
