//! softroce linked into a Rust program: what the program and its libraries call is ours.

#[test]
fn every_public_symbol_is_ours() {
    softroce::install();
    softroce::install();
}
