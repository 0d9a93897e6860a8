//! What safe code must not be able to write: each file of `compile_fail` breaks one rule, and the
//! compiler's words stand beside it. They are the same from Rust 1.88 on as long as what a file's
//! errors point at is all before its tenth line or all from there on: compilers pad differently.

/// After a change of the words: `TRYBUILD=overwrite cargo test -p rdma-core --test compile_fail`.
#[test]
fn what_breaks_a_rule_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
