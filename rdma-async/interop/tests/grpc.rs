//! Checks gRPC by tonic: calls of each kind, and the services for health and reflection.

use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use hyper_util::rt::TokioIo;
use prost_types::{FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto};
use rdma_async_interop::data;
use rdma_async_interop::echo::{EchoClient, EchoServer, Item, REFUSED, Service};
use rdma_async_interop::{Transport, in_time, over_each_transport};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

over_each_transport!(
    each_kind_of_call_is_answered,
    many_concurrent_calls_are_answered,
    large_messages_arrive_in_both_directions,
    a_slow_client_receives_a_complete_long_stream,
    a_deadline_ends_only_its_call,
    the_remote_address_of_a_request_is_the_peer,
    health_is_reported_and_watched,
    reflection_lists_the_services,
    a_shutdown_ends_after_the_running_call,
);

const NAME: &str = "interop.Echo";

struct Running {
    address: SocketAddr,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<Result<(), tonic::transport::Error>>,
}

async fn start<T: Transport>() -> Running {
    let listener = T::listen().await;
    let address = listener.local_addr().expect("its address");
    let (shutdown, signal) = oneshot::channel();
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<EchoServer<Service>>().await;
    let file = FileDescriptorProto {
        name: Some("echo.proto".into()),
        package: Some("interop".into()),
        service: vec![ServiceDescriptorProto {
            name: Some("Echo".into()),
            ..ServiceDescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    let reflection = tonic_reflection::server::Builder::configure()
        .register_file_descriptor_set(FileDescriptorSet { file: vec![file] })
        .build_v1()
        .expect("a reflection service");
    let limit = 64 << 20;
    let echo = EchoServer::new(Service).max_decoding_message_size(limit);
    let server = Server::builder()
        .add_service(echo.max_encoding_message_size(limit))
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(T::incoming(listener), async {
            drop(signal.await);
            drop(health);
        });
    Running {
        address,
        shutdown,
        served: tokio::spawn(server),
    }
}

impl Running {
    async fn channel<T: Transport>(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let connecting = endpoint.connect_with_connector(T::connector());
        in_time("a channel", connecting).await.unwrap()
    }

    async fn client<T: Transport>(&self) -> EchoClient<Channel> {
        let client = EchoClient::new(self.channel::<T>().await);
        let limit = 64 << 20;
        client
            .max_decoding_message_size(limit)
            .max_encoding_message_size(limit)
    }

    async fn stop(self) {
        self.shutdown.send(()).expect("the server runs");
        let served = in_time("the server's end", self.served).await;
        served.unwrap().unwrap();
    }
}

fn item(number: u64, len: usize) -> Item {
    Item {
        number,
        text: format!("item {number}"),
        payload: data::bytes(len),
    }
}

async fn each_kind_of_call_is_answered<T: Transport>() {
    let server = start::<T>().await;
    let mut client = server.client::<T>().await;
    let said = in_time("unary", client.say(item(7, 100))).await.unwrap();
    assert_eq!(said.into_inner(), item(7, 100));
    let refused = in_time("unary", client.say(item(REFUSED, 0))).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);

    let items = stream::iter((0..100).map(|number| item(number, 1000)));
    let sum = in_time("client streaming", client.sum(items))
        .await
        .unwrap();
    assert_eq!(sum.get_ref().number, 99 * 100 / 2);
    let payload = data::bytes(1000).repeat(100);
    assert!(sum.get_ref().payload == payload);

    let counted = in_time("server streaming", client.count(item(500, 2000))).await;
    let counted = in_time("its items", counted.unwrap().into_inner().try_collect()).await;
    let counted: Vec<Item> = counted.unwrap();
    assert!(counted.iter().map(|item| item.number).eq(0..500));
    assert!(counted.iter().all(|item| item.payload == data::bytes(2000)));

    // Each item is sent after the answer to the previous item has arrived.
    let (sender, items) = mpsc::channel(1);
    sender.send(item(0, 10)).await.unwrap();
    let chat = in_time("both streaming", client.chat(ReceiverStream::new(items))).await;
    let mut answers = chat.unwrap().into_inner();
    for number in 0..100 {
        let answer = in_time("an answer", answers.message()).await.unwrap();
        assert_eq!(answer, Some(item(number, 10)));
        sender.send(item(number + 1, 10)).await.unwrap();
    }
    drop(sender);
    let last = in_time("the last answer", answers.message()).await.unwrap();
    assert_eq!(last, Some(item(100, 10)));
    assert_eq!(in_time("the end", answers.message()).await.unwrap(), None);
    drop((answers, client));
    server.stop().await;
}

async fn many_concurrent_calls_are_answered<T: Transport>() {
    let server = start::<T>().await;
    let client = server.client::<T>().await;
    let calls = (0..500).map(|number| {
        let mut client = client.clone();
        async move {
            let len = (number * 37 % 3000) as usize;
            let said = client.say(item(number, len)).await.unwrap();
            assert_eq!(said.into_inner(), item(number, len));
        }
    });
    in_time("the answers", join_all(calls)).await;
    drop(client);
    server.stop().await;
}

async fn large_messages_arrive_in_both_directions<T: Transport>() {
    let server = start::<T>().await;
    let client = server.client::<T>().await;
    let calls = (0..4).map(|number| {
        let mut client = client.clone();
        async move {
            let said = client.say(item(number, 8 << 20)).await.unwrap();
            assert!(said.into_inner() == item(number, 8 << 20));
        }
    });
    in_time("the answers", join_all(calls)).await;
    drop(client);
    server.stop().await;
}

async fn a_slow_client_receives_a_complete_long_stream<T: Transport>() {
    let server = start::<T>().await;
    let mut client = server.client::<T>().await;
    let counted = in_time("a call", client.count(item(300, 50_000))).await;
    let mut items = counted.unwrap().into_inner();
    for number in 0..300 {
        if number % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let item = in_time("an item", items.message()).await.unwrap().unwrap();
        assert_eq!(item.number, number);
        assert!(item.payload == data::bytes(50_000));
    }
    assert_eq!(in_time("the end", items.message()).await.unwrap(), None);
    drop((items, client));
    server.stop().await;
}

async fn a_deadline_ends_only_its_call<T: Transport>() {
    let server = start::<T>().await;
    let mut client = server.client::<T>().await;
    let mut request = Request::new(stream::pending::<Item>());
    request.set_timeout(Duration::from_millis(100));
    let late = in_time("the deadline", client.sum(request)).await;
    let code = late.unwrap_err().code();
    assert!(
        matches!(code, Code::Cancelled | Code::DeadlineExceeded),
        "{code}"
    );
    let said = in_time("unary", client.say(item(1, 1))).await.unwrap();
    assert_eq!(said.into_inner(), item(1, 1));
    drop(client);
    server.stop().await;
}

async fn the_remote_address_of_a_request_is_the_peer<T: Transport>() {
    let server = start::<T>().await;
    let stream = T::connect(server.address).await;
    let local = T::local_address(&stream);
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or("the connection was used");
        async move { stream }
    });
    let endpoint = Endpoint::from_static("http://server");
    let connecting = endpoint.connect_with_connector(connector);
    let mut client = EchoClient::new(in_time("a channel", connecting).await.unwrap());
    let question = Item {
        text: "who".into(),
        ..Item::default()
    };
    let said = in_time("an answer", client.say(question)).await.unwrap();
    assert_eq!(said.into_inner().text, local.to_string());
    drop(client);
    server.stop().await;
}

async fn health_is_reported_and_watched<T: Transport>() {
    let server = start::<T>().await;
    let mut client = HealthClient::new(server.channel::<T>().await);
    let request = |service: &str| HealthCheckRequest {
        service: service.into(),
    };
    let health = in_time("the health", client.check(request(NAME))).await;
    assert_eq!(health.unwrap().get_ref().status(), ServingStatus::Serving);
    let unknown = in_time("the health", client.check(request("none"))).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
    let watch = in_time("a watch", client.watch(request(NAME))).await;
    let mut watch = watch.unwrap().into_inner();
    let first = in_time("the health", watch.message()).await.unwrap();
    assert_eq!(first.unwrap().status(), ServingStatus::Serving);
    drop((watch, client));
    server.stop().await;
}

async fn reflection_lists_the_services<T: Transport>() {
    let server = start::<T>().await;
    let mut client = ServerReflectionClient::new(server.channel::<T>().await);
    let request = |message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    let requests = stream::iter([
        request(MessageRequest::ListServices(String::new())),
        request(MessageRequest::FileContainingSymbol(NAME.into())),
    ]);
    let answers = in_time("reflection", client.server_reflection_info(requests)).await;
    let answers = answers.unwrap().into_inner();
    let answers = answers.map(|answer| answer.unwrap().message_response.unwrap());
    let answers: Vec<_> = in_time("the answers", answers.collect()).await;
    let [
        MessageResponse::ListServicesResponse(list),
        MessageResponse::FileDescriptorResponse(files),
    ] = &*answers
    else {
        panic!("{answers:?}");
    };
    assert!(list.service.iter().any(|service| service.name == NAME));
    let file: FileDescriptorProto =
        prost::Message::decode(&*files.file_descriptor_proto[0]).unwrap();
    assert_eq!(file.service[0].name(), "Echo");
    drop(client);
    server.stop().await;
}

async fn a_shutdown_ends_after_the_running_call<T: Transport>() {
    let server = start::<T>().await;
    let mut client = server.client::<T>().await;
    let (sender, items) = mpsc::channel(1);
    sender.send(item(0, 10)).await.unwrap();
    let chat = in_time("a call", client.chat(ReceiverStream::new(items))).await;
    let mut answers = chat.unwrap().into_inner();
    in_time("an answer", answers.message())
        .await
        .unwrap()
        .unwrap();
    let stopping = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!stopping.is_finished(), "the running call is awaited");
    sender.send(item(1, 10)).await.unwrap();
    let answer = in_time("an answer", answers.message()).await.unwrap();
    assert_eq!(answer, Some(item(1, 10)));
    drop(sender);
    assert_eq!(in_time("the end", answers.message()).await.unwrap(), None);
    in_time("the shutdown", stopping).await.unwrap();
}
