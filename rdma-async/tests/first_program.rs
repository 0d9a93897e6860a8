//! Checks that the example `first_program` prints the expected line.

mod example;

#[test]
fn the_program_prints_the_bytes_that_the_client_wrote() {
    assert_eq!(
        example::printed_by("first_program"),
        "Received data: [0, 0, 0, 0, 1, 1, 1, 1]\n"
    );
}
