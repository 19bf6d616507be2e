//! Two rules over source files, as pure functions of their text: which parts of the standard library a
//! file uses that it should not, and whether a crate root refuses unsafe code.

use crate::tokens::{self, Kind, Token};

/// The modules of `std` through which code reaches files, sockets, threads, clocks, processes and the
/// environment. `os` is among them for its ways into the others.
pub(crate) const OUTSIDE_WORLD: [&str; 7] = ["env", "fs", "net", "os", "process", "thread", "time"];

/// One use of what the rule forbids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) line: usize,
    /// What was used, such as `std::fs`.
    pub(crate) what: String,
}

/// Every use of one of the modules of `std`, however it is spelled: as a path, in a `use` with braces,
/// through a glob over all of `std`, or by giving `std` another name.
pub(crate) fn forbidden_std(text: &str, modules: &[&str]) -> Vec<Use> {
    let tokens = tokens::of(text);
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Word("std") {
            continue;
        }
        let after = tokens.get(at + 1..).unwrap_or_default();
        match after.first().map(|next| next.kind) {
            Some(Kind::PathSeparator) => {
                std_tree(after.get(1..).unwrap_or_default(), modules, &mut found);
            }
            // Elsewhere `std as f64` is somebody's standard deviation.
            Some(Kind::Word("as")) if is_imported(tokens.get(..at).unwrap_or_default()) => {
                found.push(Use { line: token.line, what: "std under another name".to_owned() });
            }
            _ => {}
        }
    }
    found
}

/// Whether the tokens end in `use`, `use ::` or `extern crate`.
fn is_imported(before: &[Token<'_>]) -> bool {
    let before = match before {
        [rest @ .., last] if last.kind == Kind::PathSeparator => rest,
        all => all,
    };
    before.last().is_some_and(|last| matches!(last.kind, Kind::Word("use" | "crate")))
}

/// Reads one branch of a path below `std`, and says how many tokens it took.
fn std_tree(tokens: &[Token<'_>], modules: &[&str], found: &mut Vec<Use>) -> usize {
    let Some(first) = tokens.first() else { return 0 };
    match first.kind {
        Kind::Mark('{') => {
            let mut at = 1;
            while let Some(token) = tokens.get(at) {
                match token.kind {
                    Kind::Mark('}') => return at + 1,
                    Kind::Mark(',') => at += 1,
                    _ => at += std_tree(tokens.get(at..).unwrap_or_default(), modules, found).max(1),
                }
            }
            at
        }
        Kind::Mark('*') => {
            found.push(Use { line: first.line, what: "all of std through a glob".to_owned() });
            1
        }
        Kind::Word(word) => {
            if modules.contains(&word) {
                found.push(Use { line: first.line, what: format!("std::{word}") });
            }
            if word == "self" && tokens.get(1).is_some_and(|next| next.kind == Kind::Word("as")) {
                found.push(Use { line: first.line, what: "std under another name".to_owned() });
            }
            to_the_end_of_the_branch(tokens)
        }
        Kind::PathSeparator | Kind::Mark(_) => 1,
    }
}

/// How many tokens there are before the comma or brace that ends the branch.
fn to_the_end_of_the_branch(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Mark('{') => depth += 1,
            Kind::Mark('}' | ',') if depth == 0 => return at,
            Kind::Mark('}') => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Whether the file has `#![deny(unsafe_code)]` or `#![forbid(unsafe_code)]`, alone or among other lints.
pub(crate) fn refuses_unsafe(text: &str) -> bool {
    let opening = [Kind::Mark('#'), Kind::Mark('!'), Kind::Mark('[')];
    let tokens: Vec<Kind<'_>> = tokens::of(text).iter().map(|token| token.kind).collect();
    tokens.windows(5).enumerate().any(|(at, window)| match window {
        [attribute @ .., Kind::Word("deny" | "forbid"), Kind::Mark('(')] if *attribute == opening => tokens
            .get(at + 5..)
            .unwrap_or_default()
            .iter()
            .take_while(|kind| **kind != Kind::Mark(')'))
            .any(|kind| *kind == Kind::Word("unsafe_code")),
        _ => false,
    })
}

/// Whether a file, named by its path from `src` with forward slashes, is the root of a library or of a
/// program. Attributes on one root say nothing about another.
pub(crate) fn is_crate_root(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["lib.rs" | "main.rs"] | ["bin", _, "main.rs"] => true,
        ["bin", file] => file.strip_suffix(".rs").is_some_and(|stem| !stem.is_empty()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(text: &str) -> Vec<(usize, String)> {
        forbidden_std(text, &OUTSIDE_WORLD).into_iter().map(|found| (found.line, found.what)).collect()
    }

    fn one(line: usize, what: &str) -> Vec<(usize, String)> {
        vec![(line, what.to_owned())]
    }

    #[test]
    fn every_module_is_found_as_a_path() {
        for module in OUTSIDE_WORLD {
            assert_eq!(
                uses(&format!("fn f() {{\n    std::{module}::g();\n}}")),
                one(2, &format!("std::{module}"))
            );
            assert_eq!(uses(&format!("use ::std::{module};")), one(1, &format!("std::{module}")));
        }
    }

    #[test]
    fn a_module_is_found_inside_braces() {
        assert_eq!(uses("use std::{collections::BTreeMap, fs::File};"), one(1, "std::fs"));
        assert_eq!(uses("use std::{\n    fmt::{self, Write},\n    time,\n};"), one(3, "std::time"));
        assert_eq!(uses("use {core::fmt, std::thread};"), one(1, "std::thread"));
        assert_eq!(uses("use std::{{net}};"), one(1, "std::net"));
        assert_eq!(uses("use std::{fs as files, env};").len(), 2);
    }

    #[test]
    fn std_cannot_hide() {
        assert_eq!(uses("use std as s;"), one(1, "std under another name"));
        assert_eq!(uses("use ::std as s;"), one(1, "std under another name"));
        assert_eq!(uses("extern crate std as s;"), one(1, "std under another name"));
        assert_eq!(uses("use std::{self as s};"), one(1, "std under another name"));
        assert_eq!(uses("use std::*;"), one(1, "all of std through a glob"));
        assert_eq!(uses("use r#std::r#fs;"), one(1, "std::fs"));
        assert_eq!(uses("use std /* a */ :: /* b */ fs;"), one(1, "std::fs"));
    }

    #[test]
    fn other_code_is_left_alone() {
        for text in [
            "use std::collections::{BTreeMap, btree_map};",
            "use std::{fmt, io::Write, sync::{Arc, atomic::*}};",
            "use core::time::Duration;",
            "// std::fs\n/* std::net */ /// std::time",
            "let text = \"std::process\"; let raw = r#\"std::env\"#;",
            "mod fs { } fn f() { fs::read(); crate::time::now(); }",
            "let spread = std as f64;",
            "use std::{collections::{fs}};",
        ] {
            assert_eq!(uses(text), [], "{text}");
        }
    }

    #[test]
    fn unfinished_code_ends() {
        for text in ["std::", "use std::{", "use std::{fs", "use std::{::", "use std::{a::{b"] {
            drop(uses(text));
        }
    }

    #[test]
    fn unsafe_code_is_refused_by_an_inner_attribute_only() {
        assert!(refuses_unsafe("//! Docs.\n#![deny(unsafe_code)]\n"));
        assert!(refuses_unsafe("#![forbid(unsafe_code)]"));
        assert!(refuses_unsafe("#![warn(missing_docs)]\n#![deny(missing_docs, unsafe_code)]"));
        for text in [
            "",
            "// #![deny(unsafe_code)]",
            "#![warn(unsafe_code)]",
            "#![deny(missing_docs)] fn unsafe_code() {}",
            "#[deny(unsafe_code)] mod inner {}",
            "const TEXT: &str = \"#![deny(unsafe_code)]\";",
        ] {
            assert!(!refuses_unsafe(text), "{text}");
        }
    }

    #[test]
    fn crate_roots_are_told_from_modules() {
        for path in ["lib.rs", "main.rs", "bin/tool.rs", "bin/tool/main.rs"] {
            assert!(is_crate_root(path), "{path}");
        }
        for path in ["plan.rs", "plan/lib.rs", "plan/main.rs", "bin/tool/part.rs", "bin/readme.md"] {
            assert!(!is_crate_root(path), "{path}");
        }
    }
}
