//! The subcommand `list`, which prints the methods of a server.

use std::collections::BTreeMap;

use anyhow::Context;
use rdma_rpc::{Client, MethodDescription, ReflectionClient};

use crate::format::{signature, type_text};

/// Returns the descriptions of a server's methods, which the reflection service of the server
/// sends.
pub(crate) async fn methods(client: &Client) -> anyhow::Result<Vec<MethodDescription>> {
    let methods = ReflectionClient::new(client.clone()).methods().await;
    methods
        .map_err(|error| anyhow::anyhow!("{error:?}"))
        .context("requesting the methods: the server must offer reflection")
}

/// Prints the signature of each method of the server. If `types` is set, also prints the structs
/// and enums of the signatures.
pub(crate) async fn run(client: Client, types: bool) -> anyhow::Result<()> {
    let methods = methods(&client).await?;
    let mut all = BTreeMap::new();
    for method in &methods {
        println!("{}", signature(method));
        let parts = method
            .arguments
            .iter()
            .chain(&method.input)
            .chain(&method.output);
        for part in parts.chain(&method.result).chain(&method.error) {
            all.extend(part.schema.iter().flat_map(|schema| schema.types.clone()));
        }
    }
    if types {
        for (name, format) in &all {
            println!("{}", type_text(name, format));
        }
    }
    Ok(())
}
