//! Rust source as identifiers and punctuation. Comments, strings, characters, numbers and lifetimes are
//! left out, so that a rule over the tokens is a rule over code and not over prose.

use std::iter::Peekable;
use std::str::CharIndices;

/// One piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// A word; `r#word` reads as `word`.
    Word(&'a str),
    /// `::`
    PathSeparator,
    /// Any other character that is not blank.
    Mark(char),
}

/// A piece of code and the line, from 1, that it starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) line: usize,
}

/// Splits a source file.
pub(crate) fn of(text: &str) -> Vec<Token<'_>> {
    let mut reader = Reader { text, rest: text.char_indices().peekable(), line: 1 };
    let mut tokens = Vec::new();
    while let Some(token) = reader.token() {
        tokens.push(token);
    }
    tokens
}

struct Reader<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
    line: usize,
}

impl<'a> Reader<'a> {
    fn token(&mut self) -> Option<Token<'a>> {
        loop {
            let line = self.line;
            let (at, first) = self.next()?;
            let kind = match first {
                '/' if self.peek() == Some('/') => {
                    self.skip_while(|c| c != '\n');
                    continue;
                }
                '/' if self.peek() == Some('*') => {
                    self.block_comment();
                    continue;
                }
                '"' => {
                    self.string();
                    continue;
                }
                '\'' => {
                    self.character_or_lifetime();
                    continue;
                }
                c if c.is_whitespace() => continue,
                c if c.is_ascii_digit() => {
                    self.skip_while(in_word);
                    continue;
                }
                c if in_word(c) => {
                    self.skip_while(in_word);
                    let word = self.since(at);
                    if self.after_prefix(word) {
                        continue;
                    }
                    Kind::Word(word)
                }
                ':' if self.peek() == Some(':') => {
                    self.next();
                    Kind::PathSeparator
                }
                c => Kind::Mark(c),
            };
            return Some(Token { kind, line });
        }
    }

    /// Deals with what may follow `r`, `b`, `c` and their pairs: a string, or the `#` of a raw word.
    /// Says whether the word was such a prefix.
    fn after_prefix(&mut self, word: &str) -> bool {
        let raw = matches!(word, "r" | "br" | "cr");
        match self.peek() {
            Some('"') if raw => self.raw_string(0),
            Some('"') if matches!(word, "b" | "c") => {
                self.next();
                self.string();
            }
            Some('#') if raw => {
                let mut hashes = 0;
                while self.peek() == Some('#') {
                    self.next();
                    hashes += 1;
                }
                // Without a quote this was the `r#` of a raw word, which is read next.
                if self.peek() == Some('"') {
                    self.raw_string(hashes);
                }
            }
            _ => return false,
        }
        true
    }

    /// From before the opening quote to after the closing one with its hashes.
    fn raw_string(&mut self, hashes: usize) {
        self.next();
        while let Some((_, c)) = self.next() {
            if c != '"' {
                continue;
            }
            let mut closing = 0;
            while closing < hashes && self.peek() == Some('#') {
                self.next();
                closing += 1;
            }
            if closing == hashes {
                return;
            }
        }
    }

    /// From after the opening quote to after the closing one.
    fn string(&mut self) {
        while let Some((_, c)) = self.next() {
            match c {
                '"' => return,
                '\\' => drop(self.next()),
                _ => {}
            }
        }
    }

    /// From after a single quote. A lifetime's name is skipped with it.
    fn character_or_lifetime(&mut self) {
        match self.next() {
            Some((_, '\\')) => {
                self.next();
                self.skip_while(|c| c != '\'' && c != '\n');
                self.next();
            }
            Some(_) if self.peek() == Some('\'') => drop(self.next()),
            _ => self.skip_while(in_word),
        }
    }

    /// From the `*` of the opening to after the closing that matches it.
    fn block_comment(&mut self) {
        self.next();
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next() {
                Some((_, '*')) if self.peek() == Some('/') => {
                    self.next();
                    depth -= 1;
                }
                Some((_, '/')) if self.peek() == Some('*') => {
                    self.next();
                    depth += 1;
                }
                Some(_) => {}
                None => return,
            }
        }
    }

    fn next(&mut self) -> Option<(usize, char)> {
        let next = self.rest.next();
        if let Some((_, '\n')) = next {
            self.line += 1;
        }
        next
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|&(_, c)| c)
    }

    fn skip_while(&mut self, wanted: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&wanted) {
            self.next();
        }
    }

    /// The text from a position to where the reader stands.
    fn since(&mut self, start: usize) -> &'a str {
        let end = self.rest.peek().map_or(self.text.len(), |&(at, _)| at);
        self.text.get(start..end).unwrap_or("")
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens as one line of text.
    fn shown(text: &str) -> String {
        let pieces: Vec<String> = of(text)
            .iter()
            .map(|token| match token.kind {
                Kind::Word(word) => word.to_owned(),
                Kind::PathSeparator => "::".to_owned(),
                Kind::Mark(mark) => mark.to_string(),
            })
            .collect();
        pieces.join(" ")
    }

    #[test]
    fn code_is_split_into_words_and_marks() {
        assert_eq!(shown("use std::{fmt, r#mod as m};"), "use std :: { fmt , mod as m } ;");
        assert_eq!(shown("let x: u8 = 0x1f + 1e5;"), "let x : u8 = + ;");
    }

    #[test]
    fn comments_are_left_out() {
        assert_eq!(shown("a // std::fs\n/// std::net\nb"), "a b");
        assert_eq!(shown("a /* one /* two */ still */ b"), "a b");
        assert_eq!(shown("a / b"), "a / b");
    }

    #[test]
    fn strings_and_characters_are_left_out() {
        assert_eq!(shown(r#"f("std::fs \" still", b"x", c"y")"#), "f ( , , )");
        assert_eq!(shown(r###"f(r"a\", r#"b " c"#, br##"d "# e"##) g"###), "f ( , , ) g");
        assert_eq!(shown(r"['a', '\'', '\u{1F600}', '\\', b'x'] z"), "[ , , , , b ] z");
    }

    #[test]
    fn a_lifetime_does_not_open_a_character() {
        assert_eq!(
            shown("fn f<'a>(x: &'a str, y: &'static str) {}"),
            "fn f < > ( x : & str , y : & str ) { }"
        );
    }

    #[test]
    fn lines_are_counted_through_what_is_left_out() {
        let lines: Vec<usize> = of("a\n/* \n\n */ b \"\n\" c").iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 4, 5]);
    }

    #[test]
    fn an_unfinished_file_ends() {
        for text in ["\"open", "/* open", "r#\"open", "'", "'\\", "b\"", "r#"] {
            drop(of(text));
        }
    }
}
