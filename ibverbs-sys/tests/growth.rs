//! Structs that grow: the shim between bindings and headers of different ages. The C sources of the
//! shim are compiled with the installed headers, with headers whose structs have grown, and with
//! bindings whose structs have; `growth/driver.c` calls them in front of a library of its own.
//! Needs no device.

mod common;
/// Policy of the generator.
#[allow(dead_code)]
#[path = "../build/generate/policy.rs"]
mod policy;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use policy::{COPIED, GROWS_AT_FRONT, HANDLES};

/// A copy of the headers, and a directory in which the shim is compiled with them.
struct Tree {
    root: PathBuf,
}

const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
const SOURCES: [&str; 5] = ["verbs.c", "rdmacm.c", "by_hand.c", "newer.c", "layout.c"];

impl Tree {
    /// Copies of the installed headers and of the shim.
    fn new(name: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let tree = Self { root };
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        for header in HEADERS {
            let installed = common::include().into_iter().map(|dir| dir.join(header));
            let installed = installed
                .into_iter()
                .find(|path| path.is_file())
                .expect(header);
            tree.write(header, &fs::read_to_string(installed).expect(header));
        }
        for source in SOURCES.iter().chain(&["rs_shim.h", "layout.h"]) {
            let text = fs::read_to_string(package.join("shim").join(source)).expect(source);
            tree.write(source, &text);
        }
        let driver = fs::read_to_string(package.join("tests/growth/driver.c")).expect("the driver");
        tree.write("driver.c", &driver);
        tree
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root.join(file);
        fs::create_dir_all(path.parent().expect("a file in the tree")).expect(file);
        fs::write(path, text).expect(file);
    }

    fn edit(&self, file: &str, change: impl Fn(String) -> String) {
        let text = fs::read_to_string(self.root.join(file)).expect(file);
        self.write(file, &change(text));
    }

    /// Adds fields to structs of the headers, at the front or at the end.
    fn grow(&self, structs: &[&str], at_front: bool) {
        const FIELDS: &str = "\tuint64_t rs_grown[3];\n";
        for name in structs {
            let mut found = false;
            for header in HEADERS {
                let text = fs::read_to_string(self.root.join(header)).expect(header);
                let head = format!("\nstruct {name} {{\n");
                let Some(start) = text.find(&head).map(|at| at + head.len()) else {
                    continue;
                };
                let end = start + text[start..].find("\n};").expect(name) + 1;
                let at = if at_front { start } else { end };
                self.write(header, &format!("{}{FIELDS}{}", &text[..at], &text[at..]));
                found = true;
            }
            assert!(found, "struct {name} is not in the headers");
        }
    }

    fn compiler(&self) -> Command {
        let mut command = common::compiler(std::slice::from_ref(&self.root));
        command.current_dir(&self.root).arg("-O2");
        command
    }

    /// Compiles the assertions. Returns the compiler's output on failure.
    fn assertions(&self) -> Result<(), String> {
        let output = self
            .compiler()
            .args(["-c", "layout.c", "-o", "layout.o"])
            .output();
        let output = output.expect("running the C compiler");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    /// Builds the driver with the shim, and runs it.
    fn run(&self) {
        // The driver replaces the libraries, and contains only the functions that these calls need.
        let options = ["-ffunction-sections", "-Wl,--gc-sections", "-o", "driver"];
        let sources = ["driver.c", "verbs.c", "rdmacm.c", "by_hand.c", "newer.c"];
        let output = self.compiler().args(options).args(sources).output();
        let output = output.expect("running the C compiler");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let output = Command::new(self.root.join("driver"))
            .output()
            .expect("running the driver");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn installed_headers() {
    let tree = Tree::new("installed");
    tree.assertions().expect("the assertions hold");
    tree.run();
}

#[test]
fn headers_newer_than_the_bindings() {
    let tree = Tree::new("newer");
    tree.grow(&COPIED, false);
    tree.grow(&HANDLES, false);
    tree.grow(&[GROWS_AT_FRONT], true);
    tree.assertions().expect("the assertions hold");
    tree.run();
}

#[test]
fn bindings_newer_than_the_headers() {
    let tree = Tree::new("older");
    tree.edit("layout.h", |text| {
        let larger = text.lines().map(|line| match line.rsplit_once(' ') {
            Some((define, size)) if line.starts_with("#define") => {
                let size: usize = size.parse().expect("a size");
                format!("{define} {}\n", size + 24)
            }
            _ => format!("{line}\n"),
        });
        larger.collect()
    });
    tree.run();
}

#[test]
fn a_field_that_moved_is_an_error_of_the_build() {
    let tree = Tree::new("moved");
    tree.grow(&["ibv_sge"], true);
    let errors = tree.assertions().expect_err("the assertions fail");
    assert!(errors.contains("struct ibv_sge, lkey"), "{errors}");
}

#[test]
fn a_struct_that_grows_unforeseen_is_an_error_of_the_build() {
    let tree = Tree::new("unforeseen");
    tree.grow(&["ibv_recv_wr"], false);
    let errors = tree.assertions().expect_err("the assertions fail");
    assert!(errors.contains("sizeof(struct ibv_recv_wr)"), "{errors}");
}

#[test]
fn a_constant_that_changed_is_an_error_of_the_build() {
    let tree = Tree::new("constant");
    tree.edit("infiniband/verbs.h", |text| {
        text.replace("IBV_WC_LOC_LEN_ERR,", "IBV_WC_LOC_LEN_ERR = 99,")
    });
    let errors = tree.assertions().expect_err("the assertions fail");
    assert!(errors.contains("IBV_WC_LOC_LEN_ERR"), "{errors}");
}
