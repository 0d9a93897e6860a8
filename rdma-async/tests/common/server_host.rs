//! The host on which tests start servers: this host or, if `cargo xtask test` runs them between two
//! network namespaces, the other one.

use std::env;
use std::path::Path;
use std::process::Command;

/// Returns the address of the host of the servers.
pub(crate) fn address() -> String {
    env::var("RDMA_TEST_SERVER_ADDRESS").unwrap_or_else(|_| "127.0.0.1".into())
}

/// Returns a command that runs `program` on the host of the servers.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    match env::var("RDMA_TEST_SERVER_NAMESPACE") {
        Err(_) => Command::new(program.as_ref()),
        Ok(namespace) => {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &namespace])
                .arg(program.as_ref());
            command
        }
    }
}

/// Returns `words` with the address of the host of the servers in place of 127.0.0.1.
pub(crate) fn with_address(words: &[&str]) -> Vec<String> {
    let address = address();
    let words = words.iter();
    words
        .map(|word| word.replace("127.0.0.1", &address))
        .collect()
}
