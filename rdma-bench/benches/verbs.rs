//! verbs
fn main() {}
