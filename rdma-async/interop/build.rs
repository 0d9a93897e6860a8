//! Generates the code of two gRPC services: `interop.Echo` of the tests, and `helloworld.Greeter`
//! of the example `greeter`. The services are defined here in Rust, so that the compiler of
//! protocol buffers is not needed.

use tonic_build::manual::{Builder, Method, Service};

const CODEC: &str = "tonic_prost::ProstCodec";

fn main() {
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::echo::Item")
            .output_type("crate::echo::Item")
            .codec_path(CODEC)
    };
    let echo = Service::builder()
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
    let say_hello = Method::builder()
        .name("say_hello")
        .route_name("SayHello")
        .input_type("crate::HelloRequest")
        .output_type("crate::HelloReply")
        .codec_path(CODEC)
        .build();
    let greeter = Service::builder()
        .package("helloworld")
        .name("Greeter")
        .method(say_hello)
        .build();
    Builder::new().compile(&[echo, greeter]);
}
