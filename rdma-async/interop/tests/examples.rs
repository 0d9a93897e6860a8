//! Checks the examples. Server and client are separate processes.

#[path = "../../tests/example/mod.rs"]
mod example;

use std::io::{BufReader, Read};
use std::process::ChildStdout;

use example::{Example, line};

/// Starts the server of an example, and returns the process, its output and its address.
fn serve(name: &str) -> (Example, BufReader<ChildStdout>, String) {
    let mut server = Example::start(name, &["serve", "127.0.0.1:0"]);
    let mut output = server.output();
    let listening = line(&mut output);
    let address = listening
        .strip_prefix("listening at ")
        .expect("its address");
    let address = address.to_owned();
    (server, output, address)
}

/// Runs the client of an example to its end, and returns its standard output.
fn output_of(name: &str, words: &[&str]) -> Result<String, String> {
    let mut client = Example::start(name, words);
    let mut output = client.output();
    client.finish()?;
    let mut printed = String::new();
    output.read_to_string(&mut printed).expect("its output");
    Ok(printed)
}

#[test]
fn the_greeter_returns_a_greeting() {
    let (_server, _output, address) = serve("greeter");
    for name in ["Tonic", "world"] {
        let printed = output_of("greeter", &["greet", &address, name]);
        assert_eq!(printed, Ok(format!("Hello {name}!\n")));
    }
}

#[test]
fn the_web_server_stores_and_returns_notes() {
    let (_server, _output, address) = serve("web_server");
    let url = format!("http://{address}/notes/today");
    let missing = output_of("web_server", &["get", &url]).unwrap_err();
    assert!(missing.contains("404"), "{missing}");
    let written = output_of("web_server", &["put", &url, "rain"]);
    assert_eq!(written, Ok(String::new()));
    let read = output_of("web_server", &["get", &url]);
    assert_eq!(read, Ok("rain".to_owned()));
}
