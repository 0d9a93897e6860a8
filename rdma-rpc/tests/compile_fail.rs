//! Tests that the compiler reports errors in a service's trait at their positions.

#[test]
fn errors_are_reported_at_their_positions() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}
