//! Checks that code that breaks a rule does not compile: each file in `compile_fail` breaks one
//! rule, and the error text of the compiler is stored next to the file. The text is the same from
//! Rust 1.88 on if all lines that an error mentions are before line 10 or all are after line 9,
//! because compilers align line numbers differently.

/// To store changed texts: `TRYBUILD=overwrite cargo test -p rdma-core --test compile_fail`.
#[test]
fn what_breaks_a_rule_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
