//! Sources of a crate, read along its declarations of modules, so that files of tests alone are
//! left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::imports::{Module, contents};
use crate::tokens::tokens;

/// The modules and imports of a crate.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The modules in the root.
    pub(crate) modules: Vec<String>,
    /// Other names in the root, each with the module that the root re-exports the name from.
    pub(crate) reexports: BTreeMap<String, String>,
    /// The imports of all modules.
    pub(crate) imports: Vec<Import>,
    /// The calls in all modules: the file, the line and the called name.
    pub(crate) calls: Vec<(PathBuf, usize, String)>,
}

/// An import from the crate's root.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// The module in the root that the import is in.
    pub(crate) module: String,
    /// The imported name.
    pub(crate) name: String,
}

/// Reads the crate with this directory of sources.
pub(crate) fn read(sources: &Path) -> Source {
    let root = read_file(&sources.join("lib.rs"));
    let modules = contents(&root, &[]).modules;
    let mut source = Source {
        modules: modules
            .iter()
            .map(|module| module.path[0].clone())
            .collect(),
        reexports: reexports(&root),
        ..Source::default()
    };
    for module in &modules {
        read_module(
            &mut source,
            sources,
            &file_of(sources, sources, module),
            module,
        );
    }
    source
}

fn read_module(source: &mut Source, sources: &Path, file: &Path, module: &Module) {
    let contents = contents(&read_file(file), &module.path);
    let package = sources.parent().unwrap_or(sources);
    let place = file.strip_prefix(package).unwrap_or(file);
    source
        .imports
        .extend(contents.imports.into_iter().map(|(name, line)| Import {
            file: place.to_owned(),
            line,
            module: module.path[0].clone(),
            name,
        }));
    let calls = contents.calls.into_iter();
    source
        .calls
        .extend(calls.map(|(name, line)| (place.to_owned(), line, name)));
    let beside = file.parent().unwrap_or(sources);
    for child in &contents.modules {
        read_module(source, sources, &file_of(sources, beside, child), child);
    }
}

/// Returns the file of a module that is declared in a file of the directory `beside`.
fn file_of(sources: &Path, beside: &Path, module: &Module) -> PathBuf {
    if let Some(file) = &module.file {
        return beside.join(file);
    }
    let path = sources.join(module.path.iter().collect::<PathBuf>());
    let file = path.with_extension("rs");
    if file.exists() {
        file
    } else {
        path.join("mod.rs")
    }
}

fn read_file(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the names that the root re-exports, each with the name of its module.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let tokens = tokens(root);
    let mut found = BTreeMap::new();
    for statement in tokens.split(|token| token.text == ";") {
        let Some(start) = statement.iter().position(|token| token.text == "use") else {
            continue;
        };
        let Some((module, rest)) = statement[start + 1..].split_first() else {
            continue;
        };
        let mut rest = rest.iter().map(|token| token.text).peekable();
        while let Some(word) = rest.next() {
            let is_last = matches!(rest.peek(), None | Some(&("," | "}")));
            if is_last && word.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                found.insert(word.to_owned(), module.text.to_owned());
            }
        }
    }
    found
}

#[test]
fn names_that_the_root_re_exports_are_those_of_their_modules() {
    let root = "mod a; pub use a::b; pub use c::{d, e::F, g as h}; fn i() {}";
    let found: Vec<String> = reexports(root)
        .iter()
        .map(|(name, module)| format!("{module}::{name}"))
        .collect();
    assert_eq!(found, ["c::F", "a::b", "c::d", "c::h"]);
}
