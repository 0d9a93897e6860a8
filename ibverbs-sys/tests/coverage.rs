//! Every function of the headers and every symbol of the libraries is bound, or is in
//! `shim/EXCLUDED` with the reason; and every binding has its function in the shim. Needs no
//! device.

mod common;
/// Policy of the generator.
#[allow(dead_code)]
#[path = "../build/generate/policy.rs"]
mod policy;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use policy::{EXCLUDED, HEADERS};

const BINDINGS: &str = include_str!("../src/bindings.rs");
/// The functions that are bound by hand and looked up at run time.
const NEWER: &str = include_str!("../src/newer.rs");
const RECORDED: &str = include_str!("../shim/HEADERS");

/// Returns the names of all bound functions.
fn bound() -> BTreeSet<&'static str> {
    let generated = functions_of(BINDINGS);
    generated.union(&functions_of(NEWER)).copied().collect()
}

fn functions_of(source: &'static str) -> BTreeSet<&'static str> {
    let names = source.lines().filter_map(|line| {
        let name = line.trim_start().strip_prefix("pub fn ")?;
        name.split(['(', '<']).next()
    });
    names
        .filter(|name| !["as_ref", "as_mut", "new"].contains(name))
        .collect()
}

fn excluded() -> BTreeSet<&'static str> {
    let names = EXCLUDED
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "#").collect()
}

fn recorded_headers() -> bool {
    env!("IBVERBS_SYS_VERSION") == RECORDED.trim()
}

/// Compares the found functions with the bound functions.
fn compare(found: &BTreeSet<String>, what: &str) {
    let (bound, excluded) = (bound(), excluded());
    let known = |name: &&String| bound.contains(name.as_str()) || excluded.contains(name.as_str());
    let unknown: Vec<_> = found.iter().filter(|name| !known(name)).collect();
    if recorded_headers() {
        assert!(
            unknown.is_empty(),
            "{what} neither bound nor in shim/EXCLUDED: {unknown:?}"
        );
    } else {
        // Names that came after the recorded release are not bound yet.
        println!(
            "{what} of rdma-core {} not bound: {unknown:?}",
            env!("IBVERBS_SYS_VERSION")
        );
    }
}

#[test]
fn every_function_of_the_headers_is_bound_or_excluded() {
    let found = header_functions();
    assert!(
        found.contains("ibv_post_send"),
        "an inline function was not recognised"
    );
    assert!(
        found.contains("ibv_query_port"),
        "a macro was not recognised"
    );
    assert!(
        found.contains("rdma_create_event_channel"),
        "a function was not recognised"
    );
    compare(&found, "functions");

    let gone: Vec<_> = functions_of(BINDINGS)
        .into_iter()
        .filter(|name| !found.contains(*name))
        .collect();
    assert!(gone.is_empty(), "bound, but not in the headers: {gone:?}");
}

#[test]
fn every_symbol_of_the_libraries_is_bound_or_excluded() {
    for library in ["libibverbs.so", "librdmacm.so"] {
        let symbols = symbols(&path_of(library), &["--dynamic", "--with-symbol-versions"]);
        // Symbols of drivers have a version of their own.
        let public = symbols
            .into_iter()
            .filter(|symbol| !symbol.contains("_PRIVATE_"));
        let names = public.filter_map(|symbol| Some(symbol.split('@').next()?.to_owned()));
        let names: BTreeSet<String> = names.collect();
        assert!(names.len() > 60, "{library} has no more than {names:?}");
        compare(&names, &format!("symbols of {library}"));
    }
}

#[test]
fn every_binding_links_to_its_function_of_the_shim() {
    for name in bound() {
        let link = format!("#[link_name = \"\\u{{1}}rs_{name}\"]");
        assert!(
            BINDINGS.contains(&link) || NEWER.contains(&link),
            "{name} does not link to rs_{name}"
        );
    }
    let archive = PathBuf::from(env!("OUT_DIR")).join("libibverbs_shim.a");
    let shim: BTreeSet<String> = symbols(&archive, &[]);
    let shim = shim
        .iter()
        .map(|symbol| symbol.strip_prefix("rs_").expect("a symbol of the shim"));
    assert_eq!(shim.collect::<BTreeSet<_>>(), bound());
}

#[test]
fn exclusions_have_a_reason_and_are_not_bound() {
    let bound = bound();
    for line in EXCLUDED
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (name, reason) = line.split_once(' ').unwrap_or((line, ""));
        assert!(!reason.trim().is_empty(), "{name} has no reason");
        assert!(!bound.contains(name), "{name} is bound");
    }
}

/// Returns the functions, inline functions and macros with arguments that the headers declare.
fn header_functions() -> BTreeSet<String> {
    let source = HEADERS
        .map(|header| format!("#include <{header}>\n"))
        .concat();
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join("coverage.c");
    std::fs::write(&file, source).expect("writing the list of headers");
    let output = common::compiler(&[])
        .args(["-E", "-dD"])
        .arg(&file)
        .output();
    let output = output.expect("running the C compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("the headers are in UTF-8");

    let mut functions = BTreeSet::new();
    let mut ours = false;
    let mut scan = Declarations::default();
    for line in text.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            // A line marker: `# 1 "/usr/include/infiniband/verbs.h" 1 3 4`.
            ours = HEADERS
                .iter()
                .any(|header| marker.contains(&format!("/{header}\"")));
        } else if let Some(definition) = line.strip_prefix("#define ") {
            let name = definition
                .split(|c: char| !is_word(c))
                .next()
                .unwrap_or_default();
            if ours && definition[name.len()..].starts_with('(') {
                functions.insert(name.to_owned());
            }
        } else if ours && !line.starts_with('#') {
            scan.line(line, &mut functions);
        }
    }
    functions
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Finds the names of functions in preprocessed C: words before a parenthesis, outside of braces
/// and of other parentheses.
#[derive(Default)]
struct Declarations {
    braces: usize,
    parentheses: usize,
    word: String,
    /// White space has followed the word.
    ended: bool,
    /// Seen since the last declaration ended; the argument list is the first parenthesis.
    named: bool,
}

impl Declarations {
    fn line(&mut self, line: &str, functions: &mut BTreeSet<String>) {
        for c in line.chars().chain([' ']) {
            if is_word(c) {
                if std::mem::take(&mut self.ended) {
                    self.word.clear();
                }
                self.word.push(c);
                continue;
            }
            self.ended |= c.is_whitespace();
            match c {
                '(' => {
                    let outside = self.braces == 0 && self.parentheses == 0;
                    if outside && !self.named && !self.word.starts_with("__attribute") {
                        self.named = true;
                        functions.insert(std::mem::take(&mut self.word));
                    }
                    self.parentheses += 1;
                }
                ')' => self.parentheses -= 1,
                '{' => self.braces += 1,
                '}' => {
                    self.braces -= 1;
                    self.named &= self.braces > 0;
                }
                ';' if self.braces == 0 => self.named = false,
                _ => {}
            }
            if !c.is_whitespace() {
                self.word.clear();
            }
        }
    }
}

/// Returns the functions that a library or an archive defines.
fn symbols(file: &PathBuf, options: &[&str]) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    nm.args(["--defined-only", "--extern-only"])
        .args(options)
        .arg(file);
    let output = nm.output().expect("running nm, of binutils");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let functions = text.lines().filter_map(|line| line.split_once(" T "));
    functions.map(|(_, name)| name.to_owned()).collect()
}

/// Returns the path at which the compiler finds a library.
fn path_of(library: &str) -> PathBuf {
    let option = format!("-print-file-name={library}");
    let output = common::compiler(&[])
        .arg(option)
        .output()
        .expect("running the C compiler");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}
