//! The functions that `libsoftroce.so` exports.

#[path = "../../tests/library/mod.rs"]
mod library;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use library::library;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

/// Functions of a release that is newer than the installed library, with their versions.
const NEWEST: &str = include_str!("../../src/abi/symbols/rdma-core-65.txt");

/// Functions for files, which the library answers for its device.
const FILES: [&str; 27] = [
    "stat",
    "stat64",
    "lstat",
    "lstat64",
    "fstatat",
    "fstatat64",
    "__xstat",
    "__xstat64",
    "__lxstat",
    "__lxstat64",
    "__fxstatat",
    "__fxstatat64",
    "statx",
    "access",
    "faccessat",
    "open",
    "open64",
    "openat",
    "openat64",
    "fopen",
    "fopen64",
    "opendir",
    "scandir",
    "scandir64",
    "readlink",
    "readlinkat",
    "realpath",
];

#[test]
fn every_verb_and_every_function_for_files_is_exported() {
    let exported = defined(&library());
    let real = defined(&libibverbs());
    let verbs: Vec<_> = real
        .iter()
        .filter(|name| is_public(name) && !exported.contains(*name))
        .collect();
    assert!(verbs.is_empty(), "missing: {verbs:?}");
    let verbs = real.iter().filter(|name| is_public(name)).count();
    assert!(verbs > 60, "{verbs} functions of libibverbs");
    for line in NEWEST.lines() {
        let (name, _) = line.split_once(' ').expect("a name and a version");
        assert!(
            exported.contains(name) || !is_public(name),
            "{name} is missing"
        );
    }
    for name in FILES {
        assert!(exported.contains(name), "{name} is missing");
    }
}

/// Returns whether a function of libibverbs is part of the interface for programs, and not of that
/// for drivers. The name shows this.
fn is_public(name: &str) -> bool {
    let private = [
        "ibv_cmd_",
        "ibv_register_driver",
        "ibv_read_ibdev_sysfs_file",
        "ibv_query_gid_type",
    ];
    (name.starts_with("ibv_") || name.starts_with("_ibv_"))
        && !private.iter().any(|start| name.starts_with(start))
}

fn defined(library: &Path) -> BTreeSet<String> {
    let data = fs::read(library).unwrap();
    let elf = ElfFile64::<Endianness>::parse(&*data).unwrap();
    elf.dynamic_symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| symbol.name().unwrap().to_owned())
        .collect()
}

/// Returns the path of the installed library.
fn libibverbs() -> std::path::PathBuf {
    // SAFETY: the name is a C string. The constructors of the library only initialize its own data.
    let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "libibverbs.so.1 is installed");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split(' ').next_back());
    let path = paths.find(|path| path.contains("/libibverbs.so"));
    path.expect("the library is mapped").into()
}
