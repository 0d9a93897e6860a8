//! Generates the code of the services from `schema/echo.capnp` (by the compiler `capnp`, Debian
//! package `capnproto`) and from the definition of the gRPC service below.

use anyhow::Context;
use tonic_build::manual::{Builder, Method, Service};

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed=schema/echo.capnp");
    capnpc::CompilerCommand::new()
        .src_prefix("schema")
        .file("schema/echo.capnp")
        .default_parent_module(
            ["frameworks", "capnp", "generated"]
                .map(String::from)
                .to_vec(),
        )
        .run()
        .context("compiling schema/echo.capnp; is the package capnproto installed?")?;
    let method = |name: &str, route: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::frameworks::tonic::Body")
            .output_type(output)
            .codec_path("tonic_prost::ProstCodec")
    };
    let body = "crate::frameworks::tonic::Body";
    let service = Service::builder()
        .package("peers")
        .name("Bench")
        .method(method("echo", "Echo", body).build())
        .method(method("items", "Items", body).server_streaming().build())
        .build();
    Builder::new().compile(&[service]);
    Ok(())
}
