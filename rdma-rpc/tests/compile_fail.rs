//! Mistakes in a service's trait, each of which is reported at its place.

#[test]
fn mistakes_are_reported_where_they_stand() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}
