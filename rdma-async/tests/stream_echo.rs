//! Checks that the example `stream_echo` prints the expected lines.

mod example;

#[test]
fn the_client_reads_the_echo_of_its_message() {
    assert_eq!(
        example::printed_by("stream_echo"),
        "Received message from client: Hello Server!\nServer echoed back with :Hello Server!\n"
    );
}
