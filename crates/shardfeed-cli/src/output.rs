use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on the terminal; nothing where the output is no terminal.
pub fn scan_bar(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}").expect("a fixed template");
    bar.with_style(style).with_message(what)
}

/// Writes to standard output. Unlike `print!`, a reader that went away is an error, not a panic.
pub fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// 1234567 as "1,234,567".
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 1572864 as "1.5 MiB".
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} B");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would be printed as 1024.0 is 1.0 of the next.
    while number >= 1023.95 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.1} {}", UNITS[unit])
}

/// Rows with their columns under each other, the first row underlined.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    // Columns wider than any terminal are not lined up; names come from foreign files.
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0).min(400)).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
        if index == 0 {
            text.push_str(&widths.iter().map(|&width| "─".repeat(width)).collect::<Vec<_>>().join("  "));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_columns_line_up() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1 << 10), "1.0 KiB");
        assert_eq!(bytes_text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes_text(u64::MAX), "16384.0 PiB");
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["wider".to_owned(), "x".to_owned()]];
        assert_eq!(table(&rows), "a      long\n─────  ────\nwider  x\n");
    }
}
