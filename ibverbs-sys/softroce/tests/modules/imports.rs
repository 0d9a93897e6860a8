//! Modules, imports and calls of one source file, without code that only tests compile.

use crate::tokens::{Token, tokens};

/// The parts of a file that concern other modules.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Names behind `crate::`, or behind as many `super::` as lead to the crate's root, each with
    /// its line.
    pub(crate) imports: Vec<(String, usize)>,
    /// Modules in files of their own.
    pub(crate) modules: Vec<Module>,
    /// Names of called functions and methods, also inside macros, each with its line.
    pub(crate) calls: Vec<(String, usize)>,
}

/// Module that is declared with a file of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// The names from the crate's root to the module.
    pub(crate) path: Vec<String>,
    /// The file that `#[path]` names.
    pub(crate) file: Option<String>,
}

/// Reads the file of the module with this path.
pub(crate) fn contents(source: &str, path: &[String]) -> Contents {
    let mut reader = Reader {
        tokens: tokens(source),
        at: 0,
        path: path.to_vec(),
        blocks: Vec::new(),
        file: None,
        contents: Contents::default(),
    };
    reader.read();
    reader.contents
}

struct Reader<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    /// Path of the module that the next token is in.
    path: Vec<String>,
    /// For each open brace, whether it is that of a module.
    blocks: Vec<bool>,
    /// Value of the last `#[path]`.
    file: Option<String>,
    contents: Contents,
}

/// Words that items begin with. Other code with attributes, such as a field, ends with a comma.
const ITEMS: [&str; 16] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

impl<'a> Reader<'a> {
    /// Returns the token at `ahead`, or an empty text at the end.
    fn peek(&self, ahead: usize) -> &'a str {
        let token = self.tokens.get(self.at + ahead);
        token.map_or("", |token| token.text)
    }

    fn read(&mut self) {
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "#" if self.peek(1) == "[" => {
                    self.at += 2;
                    self.attribute();
                }
                "#" if self.peek(1) == "!" && self.peek(2) == "[" => {
                    self.at += 3;
                    self.attribute();
                }
                "mod" => self.module(),
                // The path of a visibility names a module that this one is in.
                "in" if self.peek(1) == "crate" => self.at += 2,
                "crate" | "super" if self.peek(1) == "::" => self.tree(self.path.clone()),
                "{" => {
                    self.blocks.push(false);
                    self.at += 1;
                }
                "}" => {
                    if self.blocks.pop() == Some(true) {
                        self.path.pop();
                    }
                    self.at += 1;
                }
                "fn" => self.at += 2,
                name => {
                    let is_word = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
                    if is_word && self.peek(1) == "(" {
                        let line = self.tokens[self.at].line;
                        self.contents.calls.push((name.to_owned(), line));
                    }
                    self.at += 1;
                }
            }
        }
    }

    /// Reads a module's declaration, from its name on.
    fn module(&mut self) {
        let name = self.peek(1).to_owned();
        match self.peek(2) {
            ";" => {
                let path = self.path.iter().cloned().chain([name]).collect();
                let file = self.file.take();
                self.contents.modules.push(Module { path, file });
                self.at += 3;
            }
            "{" => {
                self.path.push(name);
                self.blocks.push(true);
                self.at += 3;
            }
            _ => self.at += 1,
        }
    }

    /// Reads an attribute after its opening bracket. Skips the item behind it if only tests compile
    /// the item.
    fn attribute(&mut self) {
        let is_inner = self.tokens[self.at - 2].text == "!";
        if self.peek(0) == "path" && self.peek(1) == "=" {
            self.file = Some(self.peek(2).trim_matches('"').to_owned());
        }
        let is_of_tests = self.peek(0) == "cfg" && self.peek(1) == "(" && {
            self.at += 2;
            let value = self.holds();
            self.at += 1;
            value == Some(false)
        };
        self.skip_to(&["]"]);
        self.at += 1;
        if is_of_tests && is_inner {
            self.at = self.tokens.len();
        } else if is_of_tests {
            self.skip_item();
        }
    }

    /// Reads a predicate of `cfg`. Returns its value in a build without tests, or `None` if the
    /// value depends on the rest of the configuration.
    fn holds(&mut self) -> Option<bool> {
        let name = self.peek(0);
        self.at += 1;
        if self.peek(0) != "(" {
            return match name {
                "test" | "fuzzing" => Some(false),
                _ => {
                    // A value may follow the name.
                    self.skip_to(&[",", ")"]);
                    None
                }
            };
        }
        self.at += 1;
        let mut values = Vec::new();
        while !matches!(self.peek(0), ")" | "") {
            values.push(self.holds());
            if self.peek(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
        let all_are = |value| values.iter().all(|&each| each == Some(value));
        match name {
            "not" => values.first().copied().flatten().map(|value| !value),
            "all" if values.contains(&Some(false)) => Some(false),
            "all" => all_are(true).then_some(true),
            "any" if values.contains(&Some(true)) => Some(true),
            "any" => all_are(false).then_some(false),
            _ => None,
        }
    }

    fn skip_item(&mut self) {
        self.file = None;
        while self.peek(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        match self.peek(0) {
            "use" => self.skip_to(&[";"]),
            word if ITEMS.contains(&word) => self.skip_to(&[";", "{"]),
            _ => self.skip_to(&[",", ";"]),
        }
        match self.peek(0) {
            "{" => self.skip_group(),
            "," | ";" => self.at += 1,
            // The block that contains the item ends here.
            _ => {}
        }
    }

    /// Skips tokens up to one of these, or up to the end of the group. Groups in brackets are
    /// skipped as a whole.
    fn skip_to(&mut self, ends: &[&str]) {
        while self.at < self.tokens.len() && !ends.contains(&self.peek(0)) {
            match self.peek(0) {
                "(" | "[" | "{" => self.skip_group(),
                ")" | "]" | "}" => return,
                _ => self.at += 1,
            }
        }
    }

    /// Skips a group from its opening bracket to behind its closing one.
    fn skip_group(&mut self) {
        self.at += 1;
        self.skip_to(&[]);
        self.at += 1;
    }

    /// Reads a path or a tree of paths, relative to a module; notes the names in the crate's root.
    fn tree(&mut self, mut from: Vec<String>) {
        match self.peek(0) {
            "crate" => from.clear(),
            "self" => {}
            "super" => _ = from.pop(),
            "{" => return self.branches(&from),
            _ if !from.is_empty() => return,
            name => {
                let line = self.tokens[self.at].line;
                self.contents.imports.push((name.to_owned(), line));
                self.at += 1;
                return;
            }
        }
        self.at += 1;
        if self.peek(0) == "::" {
            self.at += 1;
            self.tree(from);
        }
    }

    /// Reads the paths between a pair of braces.
    fn branches(&mut self, from: &[String]) {
        self.at += 1;
        while !matches!(self.peek(0), "}" | "") {
            self.tree(from.to_vec());
            self.skip_to(&[","]);
            if self.peek(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, path: &[&str]) -> Vec<(String, usize)> {
        let path: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
        contents(source, &path).imports
    }

    fn names(source: &str, path: &[&str]) -> String {
        let names: Vec<String> = found(source, path)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        names.join(" ")
    }

    #[test]
    fn imports_are_found_with_their_lines() {
        let source = "use std::io;\nuse crate::a::A;\n\npub(crate) use crate::{\n    b::{self, B},\n    c,\n};\n\
                      fn f() -> crate::d::D { g(crate::e::E); $crate::f!() }";
        let lines = [("a", 2), ("b", 5), ("c", 6), ("d", 8), ("e", 8), ("f", 8)];
        assert_eq!(
            found(source, &["z"]),
            lines.map(|(name, line)| (name.to_owned(), line))
        );
    }

    #[test]
    fn a_path_may_lead_to_the_root_by_parents() {
        assert_eq!(
            names(
                "use super::a; use super::super::b; use self::super::c;",
                &["y"]
            ),
            "a b c"
        );
        assert_eq!(
            names("use super::a; use super::super::b;", &["y", "z"]),
            "b"
        );
        assert_eq!(
            names("use super::{a, super::{b, c::{d, e}}, f};", &["y", "z"]),
            "b c"
        );
        assert_eq!(
            names("mod inside { use super::super::a; } use super::b;", &["z"]),
            "a b"
        );
    }

    #[test]
    fn comments_strings_and_visibilities_are_no_imports() {
        let source = "//! [`A`](crate::a)\n/* crate::b */ /// crate::c\nfn f() { \"crate::d\"; r#\"crate::e\"#; }\n\
                      pub(in crate::z) struct S; pub(crate) fn g() {}";
        assert_eq!(names(source, &["z"]), "");
    }

    #[test]
    fn imports_of_tests_are_ignored() {
        let source = "#[cfg(test)]\nuse crate::{a, b};\n\
                      #[cfg(all(test, not(loom)))] #[expect(unused)] mod tests { use crate::c; fn f() {} }\n\
                      #[cfg(any(test, fuzzing))] pub(crate) fn f<A, B>(_: [u8; 2]) -> crate::d::D { crate::e::E }\n\
                      struct S { #[cfg(test)] a: crate::f::F, b: crate::here::A }\n\
                      fn g() { S { #[cfg(test)] a: h(1, crate::g::G) } }\n\
                      #[cfg(test)] mod models;\n\
                      #[cfg(not(test))] use crate::here::B;\n\
                      #[cfg(any(test, feature = \"sim\"))] use crate::here::C;\n\
                      #[cfg(not(all(test, loom)))] use crate::here::D;\n";
        assert_eq!(names(source, &["z"]), "here here here here");
        assert!(contents(source, &[]).modules.is_empty());
        assert_eq!(names("#![cfg(test)] use crate::a;", &["z"]), "");
    }

    #[test]
    fn calls_are_found_with_their_lines() {
        let source = "fn f(a: A) {\n    g(a);\n    a.h(1); m!(i(2), (3));\n}\n\
                      #[cfg(test)] mod tests { fn t() { j(); } }\n// k()\nl::n(4);";
        let expected = [("g", 2), ("h", 3), ("i", 3), ("n", 7)];
        assert_eq!(
            contents(source, &[]).calls,
            expected.map(|(name, line)| (name.to_owned(), line))
        );
    }

    #[test]
    fn modules_in_files_are_found() {
        let source = "mod a; #[cfg(unix)] #[path = \"other.rs\"] pub mod b; mod c { mod d; }";
        let module = |path: &[&str], file: Option<&str>| Module {
            path: path.iter().map(|&name| name.to_owned()).collect(),
            file: file.map(str::to_owned),
        };
        let expected = [
            module(&["z", "a"], None),
            module(&["z", "b"], Some("other.rs")),
            module(&["z", "c", "d"], None),
        ];
        assert_eq!(contents(source, &["z".to_owned()]).modules, expected);
    }
}
