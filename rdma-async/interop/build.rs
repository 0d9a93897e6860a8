//! Generates the code of the gRPC service `interop.Echo`, which is defined here: the compiler of protocol
//! buffers is not needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::echo::Item")
            .output_type("crate::echo::Item")
            .codec_path("tonic_prost::ProstCodec")
    };
    let service = Service::builder()
        .package("interop")
        .name("Echo")
        .method(method("say", "Say").build())
        .method(method("sum", "Sum").client_streaming().build())
        .method(method("count", "Count").server_streaming().build())
        .method(
            method("chat", "Chat")
                .client_streaming()
                .server_streaming()
                .build(),
        )
        .build();
    Builder::new().compile(&[service]);
}
