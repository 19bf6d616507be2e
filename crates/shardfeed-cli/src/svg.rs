use std::fmt::Write;

/// A picture, written down shape by shape as an SVG that needs nothing else: no fonts, scripts or style sheets.
pub struct Svg {
    body: String,
    width: f64,
}

/// Where a text is held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub struct Style {
    pub size: f64,
    pub color: &'static str,
    pub bold: bool,
    pub anchor: Anchor,
}

pub const INK: &str = "#1f2933";
pub const GREY: &str = "#66727f";
pub const FAINT: &str = "#e3e7ec";

impl Style {
    pub const TITLE: Self = Self { size: 22.0, color: INK, bold: true, anchor: Anchor::Start };
    pub const HEAD: Self = Self { size: 15.0, color: INK, bold: true, anchor: Anchor::Start };
    pub const NOTE: Self = Self { size: 12.0, color: GREY, bold: false, anchor: Anchor::Start };
    pub const LABEL: Self = Self { size: 11.0, color: GREY, bold: false, anchor: Anchor::Middle };

    pub const fn at(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub const fn color(self, color: &'static str) -> Self {
        Self { color, ..self }
    }

    pub const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }
}

impl Svg {
    pub fn new(width: f64) -> Self {
        Self { body: String::new(), width }
    }

    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"/>"#
        );
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.2}" y1="{y1:.2}" x2="{x2:.2}" y2="{y2:.2}" stroke="{color}" stroke-width="{width}"/>"#
        );
    }

    pub fn dashed(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.2}" y1="{y1:.2}" x2="{x2:.2}" y2="{y2:.2}" stroke="{color}" stroke-dasharray="5 4"/>"#
        );
    }

    pub fn path(&mut self, points: &[(f64, f64)], color: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round"/>"#,
            points.join(" ")
        );
    }

    pub fn polygon(&mut self, points: &[(f64, f64)], fill: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        let _ = writeln!(self.body, r#"<polygon points="{}" fill="{fill}"/>"#, points.join(" "));
    }

    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            r##"<circle cx="{x:.2}" cy="{y:.2}" r="{radius}" fill="{fill}" stroke="#ffffff" stroke-width="1.5"/>"##
        );
    }

    pub fn text(&mut self, (x, y): (f64, f64), text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let weight = if style.bold { r#" font-weight="600""# } else { "" };
        let Style { size, color, .. } = style;
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.2}" y="{y:.2}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>{}</text>"#,
            escape(text)
        );
    }

    /// The picture, now that its height is known.
    pub fn finish(self, height: f64) -> String {
        let Self { body, width } = self;
        format!(
            r##"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}

/// A text as XML holds it. Characters that XML cannot hold at all, which file names may have, become a mark.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// About how wide a text is. Fonts differ; this is on the wide side of the usual ones.
pub fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// A text cut in the middle so that it is no wider, its beginning and its end kept.
pub fn fit(text: &str, size: f64, width_max: f64) -> String {
    let characters: Vec<char> = text.chars().collect();
    let room = (width_max / (size * 0.6)).max(3.0) as usize;
    if characters.len() <= room {
        return text.to_owned();
    }
    let (head, tail) = (room / 3, room - room / 3 - 1);
    let end = &characters[characters.len() - tail..];
    characters[..head].iter().chain(['…'].iter()).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_data_cannot_break_the_picture() {
        assert_eq!(escape("a<b>&\"c'\u{1b}\n"), "a&lt;b&gt;&amp;&quot;c&apos;\u{fffd}\u{fffd}");
        assert_eq!(fit("part-00017.parquet", 10.0, 60.0), "par…parquet".replacen("parquet", "arquet", 1));
        assert_eq!(fit("short", 10.0, 60.0), "short");
    }
}
